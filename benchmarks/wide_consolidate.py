"""`consolidate` for one wide layer, nn.Linear(4096, 64): a first task of 2,000 rows and a second one of 6,000 rows.

    python benchmarks/wide_consolidate.py [--width 4096] [--threads 1] [--profile]

The energy of the "decaying" rows falls off as it does in a trained layer, above a floor of noise. "White" rows have the same
energy in all directions, the worst case: the memory needs nearly as many directions as there are.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable

import torch
from timing import machine
from torch import Tensor, nn

from remnant import GPM

TASKS = (2000, 6000)  # rows: fewer than inputs, and more


def decaying(count: int, width: int, task: int) -> Tensor:
    """Rows in directions of the task's own, with singular values that fall by e⁸, and 1 % of white noise."""
    generator = torch.Generator().manual_seed(task)
    sizes = torch.exp(-8 * torch.arange(width) / width)
    # Householder's reflection I − 2·v·vᵀ turns the axes into another orthonormal basis at no cost.
    v = nn.functional.normalize(torch.randn(width, generator=generator), dim=0)
    rows = torch.randn(count, width, generator=generator) * sizes[torch.randperm(width, generator=generator)]
    return rows - 2 * torch.outer(rows @ v, v) + 0.01 * torch.randn(count, width, generator=generator)


def white(count: int, width: int, task: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(task))


def measure(kind: str, make: Callable[[int, int, int], Tensor], width: int) -> None:
    torch.manual_seed(0)
    memory = GPM(nn.Linear(width, 64), threshold=0.97)
    for task, count in enumerate(TASKS):
        batches = make(count, width, task).split(500)
        start, used = time.perf_counter(), time.process_time()
        (added,) = memory.consolidate(batches).values()
        wall, cpu = time.perf_counter() - start, time.process_time() - used
        print(f"{kind:>9} {task + 1:>5} {count:>6,} {added:>11,} {wall:>8.1f} {cpu:>8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096, help="the inputs of the layer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="list the functions that take the most time")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print(machine())
    print(f"{'rows':>9} {'task':>5} {'count':>6} {'directions':>11} {'wall, s':>8} {'CPU, s':>8}")
    profile = cProfile.Profile(time.process_time)
    with profile:
        for kind, make in (("decaying", decaying), ("white", white)):
            measure(kind, make, chosen.width)
    if chosen.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
