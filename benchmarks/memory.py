"""What the memory costs, against the plain way, in one run: projection, consolidation, a whole training step.

    python benchmarks/memory.py [--quick]

The plain way is that of the paper's scripts, in numpy: a dense projector M·Mᵀ applied to each gradient, and the SVD of
the sample matrix. Ratios are above 1 where ours is faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant import GPM, Subspace
from remnant.memory.layers import views_of
from remnant.memory.subspaces.gram import Gram
from remnant.memory.subspaces.projection import Projection, cheapest_form

SIZES = (784, 2304, 4608)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median of several runs after one to warm up."""
    if repeats > 1:
        work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def orthonormal(n: int, k: int) -> Subspace:
    subspace = Subspace(n, dtype=torch.float32)
    columns = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0][:, :k]
    subspace.grow(columns @ columns.mT, 1.0)
    return subspace


def projection(outputs: int = 256) -> None:
    print(f"\nProjection of one gradient ({outputs} × n, float32), ms; the last column: numpy's dense projector ÷ ours")
    print(
        f"{'n':>6} {'rank':>6} {'numpy dense':>12} {'low-rank':>9} {'complement':>11} {'dense':>7}  chosen       ratio"
    )
    for n in SIZES:
        for share in (0.1, 0.5, 0.9):
            subspace = orthonormal(n, int(share * n))
            x = torch.randn(1, outputs, n)
            projector = (subspace.basis @ subspace.basis.mT).numpy()
            gradient = x[0].numpy()
            plain = seconds(lambda g=gradient, p=projector: g - g @ p, 7)
            ours = {}
            for form in ("low-rank", "complement", "dense"):
                made = Projection([subspace], outputs, torch.float32, torch.device("cpu"), form=form)
                ours[form] = seconds(lambda x=x, made=made: made.remove(x), 7)
            chosen = cheapest_form(outputs, n, subspace.rank, n - subspace.rank, "cpu")
            print(
                f"{n:>6} {subspace.rank:>6} {1e3 * plain:>12.2f} {1e3 * ours['low-rank']:>9.2f} "
                f"{1e3 * ours['complement']:>11.2f} {1e3 * ours['dense']:>7.2f}  {chosen:<11} {plain / ours[chosen]:>5.1f}×"
            )


def consolidation(quick: bool) -> str:
    print("\nConsolidation of one task's rows, s: Gram + eigh (float64) against numpy's SVD of the sample matrix")
    print(f"{'n':>6} {'rows':>7} {'numpy SVD':>10} {'ours':>7} {'ratio':>7}   ranks")
    for n, count in [(784, 6000), (2304, 6000), (2304, 12000), (4608, 9216)][: 2 if quick else 4]:
        generator = torch.Generator().manual_seed(0)
        scale = 0.99 ** torch.arange(n)
        rows = torch.randn(count, n, generator=generator) * scale
        ranks = []

        def plain(rows: Tensor = rows, ranks: list[int] = ranks) -> None:
            samples = rows.numpy().T.astype(np.float64)  # as the scripts have it: one column a sample
            _, s, _ = np.linalg.svd(samples, full_matrices=False)
            ranks.append(int(np.sum(np.cumsum(s**2) / np.sum(s**2) < 0.97)) + 1)

        def ours(rows: Tensor = rows, n: int = n, ranks: list[int] = ranks) -> None:
            gram, subspace = Gram(1, n, rows.device), Subspace(n, dtype=torch.float32)
            for batch in rows.split(500):
                gram.add(batch.unsqueeze(0))
            ranks.append(subspace.grow(gram.of_group(0), 0.97))

        slow, fast = seconds(plain, 1), seconds(ours, 3 if n < 4000 else 1)
        print(f"{n:>6} {count:>7} {slow:>10.2f} {fast:>7.2f} {slow / fast:>6.1f}×   {ranks[0]} = {ranks[-1]}")
    return f"ratio {slow / fast:.1f}: consolidation of {count:,} rows of {n} by numpy's SVD against ours"


def transposed() -> None:
    """A strided transposed convolution has many rows for few examples."""
    torch.manual_seed(0)
    layer, images = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), torch.randn(8, 32, 28, 28)

    def plain() -> None:
        rows = torch.cat([part[0] for part in views_of(layer)[0].rows(images)])
        np.linalg.svd(rows.numpy().T.astype(np.float64), full_matrices=False)

    slow, fast = seconds(plain, 1), seconds(lambda: GPM(layer, 0.97).consolidate(images), 9)
    print(f"\nA whole `consolidate` of {layer}, 8 examples of 28×28: {fast:.2f} s")
    print(f"numpy's SVD of its rows alone: {slow:.2f} s, ratio {slow / fast:.1f}")


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet18(width: int) -> nn.Module:
    """The 18-layer ResNet for 32×32 images; 64 filters at first, or the paper's 20."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        for block in range(2):
            layers.append(Block(inputs, width * 2**stage, 2 if stage and not block else 1))
            inputs = width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def remember(memory: GPM, share: float) -> None:
    """Fills every layer's memory to a share of its capacity, with random directions: what a step costs depends on no more."""
    state = memory.state_dict()
    for name, subspace in memory.subspaces.items():
        assert isinstance(subspace, Subspace)
        filled = orthonormal(subspace.capacity, max(1, int(share * subspace.capacity)))
        state["layers"][name].update(subspaces=[filled.state()], added=[filled.rank])
    parameters = dict(memory.model.named_parameters())
    state.update(tasks=1, anchors={name: p.detach().clone() for name, p in parameters.items()})
    memory.load_state_dict(state)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "AdamW, weight decay": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.05),
}


def overhead(memory: GPM, optimizer: torch.optim.Optimizer, one: Callable[[], object], repeats: int) -> str:
    """A step without and with protection, in turns, so that a busy machine slows both alike."""
    one()
    bare, protected = [], []
    for _ in range(repeats):
        memory.detach()
        bare.append(seconds(one, 1))
        memory.attach(optimizer)
        protected.append(seconds(one, 1))
    b, p = statistics.median(bare), statistics.median(protected[1:])  # the first one builds the projections
    return f"{1e3 * b:>8.1f} {1e3 * p:>10.1f} {p / b - 1:>8.1%}"


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], object]:
    def one() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return one


def step(quick: bool) -> None:
    print(
        "\nA training step of ResNet-18 (32×32, batch 64), ms, with a share of every layer's directions held, against bare"
    )
    print(f"{'filters':>8} {'optimizer':<20} {'held':>5} {'bare':>8} {'protected':>10} {'overhead':>9}")
    x, y = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    for width, shares in [(20, (0.1, 0.25, 0.5)), (64, (0.1,))][: 1 if quick else 2]:
        for name, make in OPTIMIZERS.items():
            for share in shares:
                model = resnet18(width)
                memory = GPM(model, 0.97, norm="free")  # frozen statistics are cheaper; here only protection is timed
                optimizer = make(model.parameters())
                remember(memory, share)
                timed = overhead(memory, optimizer, stepper(model, optimizer, x, y), 7 if width == 20 else 4)
                print(f"{width:>8} {name:<20} {share:>5.0%} {timed}")


def real_step() -> None:
    """The same after a real first task, where there is one to learn: the first ten classes of CIFAR-100."""
    from remnant.data import MissingDataError, load_stream

    try:
        train = load_stream("split-cifar100")[0].train
    except MissingDataError as error:
        print(f"\nNo step after a real task: {error}")
        return
    print("\nThe same after learning the first ten classes of CIFAR-100, ε = 0.97")
    print(f"{'filters':>8} {'optimizer':<20} {'held':>5} {'bare':>8} {'protected':>10} {'overhead':>9}")
    for width, steps in ((20, 225), (64, 40)):
        torch.manual_seed(0)
        model = resnet18(width)
        memory = GPM(model, 0.97, norm="free")
        optimizer = OPTIMIZERS["AdamW, weight decay"](model.parameters())
        for _ in range(steps):
            part = torch.randint(0, len(train), (64,))
            stepper(model, optimizer, train.x[part], train.y[part])()
        memory.consolidate(train.x.split(64), samples=125)
        held = [subspace for subspace in memory.subspaces.values() if isinstance(subspace, Subspace)]
        share = sum(subspace.rank for subspace in held) / sum(subspace.capacity for subspace in held)
        timed = overhead(memory, optimizer, stepper(model, optimizer, train.x[:64], train.y[:64]), 7)
        print(f"{width:>8} {'AdamW, weight decay':<20} {share:>5.0%} {timed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small sizes only")
    quick = parser.parse_args().quick
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    projection()
    last = consolidation(quick)
    transposed()
    step(quick)
    if not quick:
        real_step()
    print(last)


if __name__ == "__main__":
    main()
