"""How much of a new task's gradient is left for the weights, and how well the task is learnt: GPM and remnant-recall.

    python benchmarks/remaining_gradient.py [--benchmark pmnist] [--figure docs/figures/remaining-gradient.svg]

Before the first step of a task, a layer's share is ‖g·P‖ / ‖g‖ over 2,000 training examples, where P is what a step may
use (Eq. 6–7). Expected: the shares fall alike for both methods. GPM's late tasks are then learnt worse, and those of
remnant-recall are not, because each task also has parts of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from remnant.accelerated import FastestTrainer
from remnant.data import Split
from remnant.experiments import resolve
from remnant.experiments.execute.build import build_method
from remnant.methods import Method
from remnant.training import Schedule, TrainingState, evaluate_method, run_to_completion

EXAMPLES = 2000
METHODS = {"gpm": "GPM", "remnant-recall": "Recall (ours)"}
Measured = tuple[dict[str, list[float]], list[float]]  # layer → share by task; accuracy of each task after learning it


def shares(method: Method, train: Split) -> dict[str, float]:
    """Each layer's share of the gradient that the weights may follow."""
    loss = method.loss(train.x[:EXAMPLES], train.y[:EXAMPLES])
    weights = {name: p for name, p in method.network.named_parameters() if name.endswith("weight")}
    gradients = torch.autograd.grad(loss, list(weights.values()))
    projections, found = method.layer_projections(), {}
    for name, gradient in zip(weights, gradients, strict=True):
        layer = name.removesuffix(".weight")
        left = gradient @ projections[layer] if layer in projections else gradient
        found[layer] = float(left.norm() / gradient.norm())
    return found


def measure(benchmark: str, name: str) -> Measured:
    settings, device = resolve(benchmark, name), torch.device("cpu")
    torch.manual_seed(0)
    stream, method = build_method(settings, 0, device)
    schedule = Schedule(lr=settings.options["lr"], **settings.training)
    left: dict[str, list[float]] = {}
    accuracies: list[float] = []
    for number, task in enumerate(stream):
        method.start(number)
        for layer, share in shares(method, task.train).items():
            left.setdefault(layer, []).append(share)
        run_to_completion(FastestTrainer(schedule).fit(method, number, task, TrainingState(), lambda *_: None))
        method.finish(number, task.train)
        found = run_to_completion(evaluate_method(method, {number: task.test}, schedule.evaluation_batch))
        accuracies.append(100 * float(found.accuracy[0]))
        values = "  ".join(f"{layer} {values[-1]:.3f}" for layer, values in left.items())
        print(f"{name:>15}  task {number + 1:>2}  {values}  accuracy {accuracies[-1]:.2f} %", flush=True)
    return left, accuracies


def draw(path: Path, measured: dict[str, Measured]) -> None:
    import matplotlib.pyplot as plt

    from remnant.report.figures.drawing import COLOURS, INK, RC

    with plt.rc_context(RC):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
        for style, (name, (found, accuracies)) in zip(("--", "-"), measured.items(), strict=True):
            tasks = range(1, len(accuracies) + 1)
            for colour, marker, (layer, values) in zip(COLOURS, "osD^vP", found.items(), strict=False):
                label = f"{layer}, {METHODS[name]}"
                left.plot(tasks, values, color=colour, marker=marker, linestyle=style, label=label)
            right.plot(tasks, accuracies, color=INK, marker="P", linestyle=style, label=f"all, {METHODS[name]}")
        left.set(xlabel="task", ylabel="‖g·P‖ / ‖g‖ at its first step", title="What the weights may follow")
        right.set(xlabel="task", ylabel="accuracy just after the task, %", title="How well it is learnt")
        figure.legend(loc="outside lower center", ncols=4, handlelength=3.5)
        figure.savefig(path, metadata={"Date": None})
    print(f"drawn: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="pmnist")
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    result = {name: measure(chosen.benchmark, name) for name in METHODS}
    if chosen.figure:
        draw(chosen.figure, result)
