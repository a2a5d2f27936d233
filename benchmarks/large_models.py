"""What a memory costs a ViT-B/16 and a GPT-2 of 124 million parameters, fully trained with AdamW from their configs.

It times a step without a memory and the same step after a first task is remembered, and `consolidate` of `--examples`.
The defaults are for a GPU. On a CPU take a few: --batch 2 --examples 8 --steps 3.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from setting import best_device, some
from timing import fastest, machine, now
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from remnant import GPM

Batches = Callable[[int], dict[str, torch.Tensor]]


def vision() -> tuple[nn.Module, Batches, dict[str, Any]]:
    """ViT-B/16. Its class token and positions have no rule, and are frozen after the first task."""
    few = torch.randn(64, 3 * 224 * 224)

    def batches(count: int) -> dict[str, torch.Tensor]:
        images = torch.randn(count, 64) @ few / 8
        return {"pixel_values": images.view(count, 3, 224, 224), "labels": torch.randint(0, 100, (count,))}

    return ViTForImageClassification(ViTConfig(num_labels=100)), batches, {"unsupported": "freeze"}


def language() -> tuple[nn.Module, Batches, dict[str, Any]]:
    """GPT-2 on sequences of 128 tokens."""

    def batches(count: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 2000, (count, 128))
        return {"input_ids": tokens, "labels": tokens}

    return GPT2LMHeadModel(GPT2Config()), batches, {}


COLUMNS = (
    *("model", "batch", "step, ms", "protected", "overhead", "consolidate, s"),
    *("bases, MB", "kept in all, MB", "at most, MB", "mean rank", "worst leak"),
)
MODELS = {"vit": vision, "gpt2": language}


def on(batch: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def allocated(*, peak: bool = False) -> int:
    """Bytes of a GPU's memory in use, or the most since the last call. 0 on a CPU."""
    if not torch.cuda.is_available():
        return 0
    most = torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return most


def measure(name: str, given: argparse.Namespace, device: torch.device) -> str:
    torch.manual_seed(0)
    model, batches, options = MODELS[name]()
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = on(batches(given.batch), device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=given.autocast):
            loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    plain = fastest(step, given.steps)
    memory = GPM(model, given.threshold, **options)
    memory.attach(optimizer)
    task = [batches(min(given.batch, given.examples - k)) for k in range(0, given.examples, given.batch)]
    before, start = allocated(), now()
    memory.consolidate(on(each, device) for each in task)
    consolidation = now() - start
    most, kept = (f"{(x - before) / 1e6:.0f}" if before else "–" for x in (allocated(peak=True), allocated()))
    protected = fastest(step, given.steps)
    worst = memory.verify().worst
    report = memory.report()
    ranks = [layer.share for layer in report.layers]
    parameters = sum(p.numel() for p in model.parameters())
    return (
        f"| {name}, {parameters / 1e6:.0f} M | {given.batch} | {1000 * plain:.1f} | {1000 * protected:.1f} | "
        f"{100 * (protected / plain - 1):.1f} % | {given.examples}: {consolidation:.1f} | {report.nbytes / 1e6:.0f} | "
        f"{kept} | {most} | "
        f"{100 * sum(ranks) / len(ranks):.0f} % | {worst:.0e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--batch", type=some, default=64)
    parser.add_argument("--examples", type=some, default=2000)
    parser.add_argument("--steps", type=some, default=10)
    parser.add_argument("--threshold", type=float, default=0.97)
    parser.add_argument("--autocast", action="store_true", help="compute in bf16")
    given = parser.parse_args()
    if unknown := set(given.models) - set(MODELS):
        parser.error(f"no model {unknown.pop()!r}: choose from {', '.join(MODELS)}")
    warnings.simplefilter("ignore")
    print(machine())
    print("", *COLUMNS, "", sep=" | ")
    print("", *["---"] * len(COLUMNS), "", sep=" | ")
    for name in given.models:
        print(measure(name, given, best_device()), flush=True)


if __name__ == "__main__":
    main()
