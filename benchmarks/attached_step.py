"""What an attached memory adds to an eager step on one core: small networks, sparse tables and many optimizers.

OMP_NUM_THREADS=1 python benchmarks/attached_step.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
import torch.nn.functional as F
from timing import machine, own
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, SparseAdam

from remnant import GPM

ROUNDS = 7
Factory = Callable[[Iterable[Tensor]], Optimizer]


class Mean(nn.Module):
    """The mean of the vectors of several words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200_000, 64, sparse=True)

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words).mean(1)


def mlp(bias: bool) -> tuple[nn.Module, Tensor, Tensor, float]:
    sizes = (784, 100, 100, 10)
    layers = [part for n, m in pairwise(sizes) for part in (nn.Linear(n, m, bias=bias), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(64, 784), torch.randint(10, (64,)), 0.95


def deep() -> tuple[nn.Module, Tensor, Tensor, float]:
    layers = [part for _ in range(60) for part in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(64, 32), torch.randint(10, (64,)), 0.9


def table() -> tuple[nn.Module, Tensor, Tensor, float]:
    return Mean(), torch.randint(200_000, (64, 8)), torch.randint(10, (64,)), 1.0


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor, Tensor, float]], Factory, bool, int]] = {
    "MLP 784-100-100, SGD": (lambda: mlp(True), lambda p: SGD(p, 0.01), False, 300),
    "MLP 784-100-100, Adam": (lambda: mlp(True), lambda p: Adam(p, 1e-3), False, 300),
    "MLP without biases, SGD": (lambda: mlp(False), lambda p: SGD(p, 0.01), False, 300),
    "MLP without biases, Adam": (lambda: mlp(False), lambda p: Adam(p, 1e-3), False, 300),
    "60 layers of 32, Adam": (deep, lambda p: Adam(p, 1e-3), False, 40),
    "120 optimizers, SGD": (deep, lambda p: SGD(p, 0.01), True, 40),
    "120 optimizers, Adam": (deep, lambda p: Adam(p, 1e-3), True, 40),
    "sparse table 200,000x64, SGD": (table, lambda p: SGD(p, 0.01), False, 60),
    "sparse table 200,000x64, SparseAdam": (table, lambda p: SparseAdam(p, 1e-3), False, 60),
}


def seconds(model: nn.Module, optimizers: list[Optimizer], x: Tensor, y: Tensor, steps: int) -> float:
    start = own()
    for _ in range(steps):
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return (own() - start) / steps


def main() -> None:
    print(machine())
    print(f"{'':<36} {'bare, µs':>9} {'attached':>9} {'ratio':>7}")
    for name, (make, factory, one_each, steps) in CASES.items():
        torch.manual_seed(0)
        bare, x, y, threshold = make()
        models = {"bare": bare, "attached": copy.deepcopy(bare)}
        memory = GPM(models["attached"], threshold)
        memory.consolidate(x[:32])
        optimizers = {
            which: [factory([p]) for p in model.parameters()] if one_each else [factory(model.parameters())]
            for which, model in models.items()
        }
        for optimizer in optimizers["attached"]:
            memory.attach(optimizer)
        times: dict[str, list[float]] = {"bare": [], "attached": []}
        for _ in range(ROUNDS):
            for which in times:
                times[which].append(seconds(models[which], optimizers[which], x, y, steps))
        b, a = (1e6 * min(measured[1:]) for measured in times.values())
        print(f"{name:<36} {b:>9.0f} {a:>9.0f} {a / b:>6.2f}x", flush=True)


if __name__ == "__main__":
    main()
