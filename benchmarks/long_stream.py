"""A thousand tasks: what a step, a consolidation and the memory cost as tasks are added. One core; times are of the thread.

    python benchmarks/long_stream.py [--tasks 1000] [--figure docs/figures/long-stream.svg]

The network (64-100-100-10) learns permuted digits with SGD until its first layer is nearly full and learns no more; the
question is what it costs. Expected: a step costs the same in any task, and the bases take n·min(k, n − k) numbers a layer.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import deque
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from timing import machine, own
from torch import nn

from remnant import GPM

STEPS, BATCH, EXAMPLES = 40, 32, 200
Point = tuple[
    int, float, float, float, float, float
]  # task, µs a step, ms a consolidation, kB of bases, share, MB in RAM


def resident() -> float:
    """MB of RAM that the process takes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def usual(times: deque[float]) -> float:
    """A tenth are faster: other work on the machine slows most of them down."""
    return sorted(times)[len(times) // 10]


def measure(tasks: int) -> list[Point]:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    memory = GPM(model, 0.95)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.05))
    steps, finishes = deque[float](maxlen=10 * STEPS), deque[float](maxlen=10)  # of the last ten tasks
    points: list[Point] = []
    print(f"{'task':>6} {'step, µs':>9} {'consolidate, ms':>16} {'bases, kB':>10} {'of the space':>13} {'RAM, MB':>8}")
    for task in range(1, tasks + 1):
        order, chosen = torch.randperm(64), torch.randint(len(x), (STEPS, BATCH))
        for batch in chosen:
            start = own()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch][:, order]), y[batch]).backward()
            optimizer.step()
            steps.append(1e6 * (own() - start))
        start = own()
        memory.consolidate([x[:EXAMPLES, order]])
        finishes.append(1e3 * (own() - start))
        if task in (1, 2, 5, 10, 20, 50) or task % max(1, tasks // 20) == 0:
            report, step, finish = memory.report(), usual(steps), usual(finishes)
            points.append((task, step, finish, report.nbytes / 1e3, report.share, resident()))
            print("{:>6} {:>9.0f} {:>16.1f} {:>10.1f} {:>13.0%} {:>8.0f}".format(*points[-1]), flush=True)
    return points


def draw(path: Path, points: list[Point]) -> None:
    import matplotlib.pyplot as plt

    from remnant.report.figures.drawing import COLOURS, RC

    task, step, finish, bases, *_ = zip(*points, strict=True)
    with plt.rc_context(RC):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
        for axes, values, title, unit in (
            (left, step, "A step", "µs"),
            (middle, finish, "A consolidation", "ms"),
            (right, bases, "The bases", "kB"),
        ):
            axes.plot(task, values, marker="o", markersize=3, color=COLOURS[0])
            axes.set(title=title, xlabel="task", ylabel=unit, ylim=(0, 1.6 * max(values)))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--figure", type=Path, help="where to draw it")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="These layers are full")
    print(machine())
    points = measure(chosen.tasks)
    if chosen.figure:
        draw(chosen.figure, points)
    middle = next(point for point in points if point[0] >= chosen.tasks // 10)
    print(f"\nratio {points[-1][1] / middle[1]:.2f}: a step of task {points[-1][0]} against one of task {middle[0]}")
    print(
        f"ratio {points[-1][2] / middle[2]:.2f}: a consolidation; {points[-1][5] - middle[5]:+.1f} MB of RAM between them"
    )


if __name__ == "__main__":
    main()
