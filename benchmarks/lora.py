"""How LoRA keeps and learns five tasks, by threshold: examples/lora_vit.py with InfLoRA's setting (rank 10, Adam, 5e-4).

It compares a fresh adapter per task, plain LoRA, A and B protected as any layers, and A outside the memory with B free.
"""

from __future__ import annotations

import argparse
import runpy
import warnings
from pathlib import Path
from typing import Any

import torch

import remnant

EXAMPLE = Path(__file__).parents[1] / "examples" / "lora_vit.py"
HEADER = "| | ε | accuracy when learnt, % | after all tasks, % | largest drift | full, % |\n|---|---|---|---|---|---|"


def learn(example: dict[str, Any], options: dict[str, Any] | None) -> tuple[list[float], list[float], float, float]:
    """Accuracy of each task when it was learnt and at the end, the largest drift, and how full the fullest layer is."""
    model = example["adapted_network"]()
    memory = None if options is None else remnant.GPM(model, exclude=["*.heads.*"], **options)
    tasks = range(example["TASKS"])
    then = []
    for task in tasks:
        example["train"](model, task, memory)
        then.append(example["outputs"](model, task))
    now = [example["outputs"](model, task) for task in tasks]
    drift = max(float((x - y).norm() / y.norm()) for x, y in zip(now, then, strict=True))
    learnt, final = ([example["accuracy"](x, task) for task, x in enumerate(each)] for each in (then, now))
    layers = memory.report().layers if memory is not None else ()
    return learnt, final, drift, 100 * max((layer.rank / layer.capacity for layer in layers), default=0.0)


def row(name: str, threshold: object, learnt: list[float], final: list[float], drift: float, full: float) -> str:
    accuracies = [", ".join(f"{value:.1f}" for value in each) for each in (learnt, final)]
    return f"| {name} | {threshold} | {accuracies[0]} | {accuracies[1]} | {drift:.0e} | {full:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--thresholds", type=float, nargs="*", default=[0.99, 0.9999, 0.999999, 0.9999999])
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # drift and full layers are in the table
    example = runpy.run_path(str(EXAMPLE))
    example["learn"].__globals__.update(STEPS=given.steps, WIDTH=given.width, LR=given.lr)
    print(HEADER)
    fresh = [example["fresh_adapter"](task) for task in range(example["TASKS"])]
    print(row("a fresh adapter for each task", "", fresh, [], 0.0, 0.0), flush=True)
    print(row("plain LoRA", "", *learn(example, None)), flush=True)
    for threshold in given.thresholds:
        print(row("GPM over A and B", threshold, *learn(example, {"threshold": threshold})), flush=True)
        print(
            row('GPM, lora="inputs"', threshold, *learn(example, {"threshold": threshold, "lora": "inputs"})),
            flush=True,
        )


if __name__ == "__main__":
    main()
