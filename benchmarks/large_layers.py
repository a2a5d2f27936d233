"""Wide layers: exact Gram matrices against sketches, the cost of a step, narrow bases, and the cost model of whole models.

    python benchmarks/large_layers.py [--widths 1024,2048,4096] [--paper] [--one 128 512 16384]

The singular values of the rows fall by e⁸ or e³² over the width. Seconds are of one thread; the peak is the RAM of a process
of its own above what it took before. `--paper` prints the cost model alone, and `--one` measures one consolidation.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from timing import fastest, machine, own
from torch import Tensor

from remnant import Subspace
from remnant.memory.subspaces.gram import Gram
from remnant.memory.subspaces.projection import Projection
from remnant.memory.subspaces.sketch import Sketch, random_vectors

CPU = torch.device("cpu")
EPSILON = 0.97


def ram(field: str) -> float:
    """MB of RAM that the process takes now (VmRSS), or took at most since the last reset (VmHWM); Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def falling(count: int, n: int, decay: float) -> Tensor:
    """Rows whose singular values fall by e^decay, turned by Householder's reflection I − 2·v·vᵀ."""
    generator = torch.Generator().manual_seed(0)
    v = torch.nn.functional.normalize(torch.randn(n, generator=generator), dim=0)
    rows = torch.randn(count, n, generator=generator) * torch.exp(-decay * torch.arange(n) / n)
    return rows.addr_(rows @ v, v, alpha=-2)


def consolidate_once(decay: int, width: int, n: int) -> None:
    """2·n rows, 500 at a time, into a Gram matrix or a sketch, and its directions; prints one line."""
    torch.set_num_threads(1)
    rows = falling(2 * n, n, decay)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = ram("VmRSS")
    gram = Sketch(1, random_vectors(n, width, CPU)) if width else Gram(1, n, CPU)
    start = own()
    for part in rows.split(500):
        gram.add(part[None])
    added, subspace = own() - start, Subspace(n, dtype=torch.float32)
    start = own()
    count = subspace.grow(gram.of_group(0), EPSILON)
    grown, most = own() - start, ram("VmHWM") - before
    held = 1 - float(subspace.remove(rows).square().sum() / rows.square().sum())
    kept = 8 * n * (width + 1 if width else n) / 1e6
    label = f"sketch {width}" if width else "exact"
    print(f"{n:>6} {f'e^-{decay}':>6} {label:>12} {kept:>9.0f} {most:>9.0f} {added:>8.2f} {grown:>8.2f}", end=" ")
    print(f"{count:>11,} {held:>7.4f} {gram.missing:>8.4f}")


def consolidations(widths: list[int]) -> None:
    print("\nConsolidation of one layer, 2·n rows, ε = 0.97")
    print(f"{'n':>6} {'falls':>6} {'':>12} {'kept, MB':>9} {'peak, MB':>9} {'rows, s':>8} {'grow, s':>8}", end=" ")
    print(f"{'directions':>11} {'held':>7} {'missing':>8}", flush=True)
    for n in widths:
        for decay, width in ((8, 0), (8, n // 4), (8, n * 7 // 16), (32, 0), (32, n // 16), (32, n // 8)):
            subprocess.run([sys.executable, __file__, "--one", str(decay), str(width), str(n)], check=True)


def steps(widths: list[int], held: int = 512) -> None:
    """Projecting a gradient and restoring a weight of n outputs, against the 6·rows·n² flops of the layer's own step."""
    print(f"\nA step of a layer n → n with k = n/8 directions, {held} rows, one thread")
    print(f"{'n':>6} {'project, ms':>12} {'restore, ms':>12} {'layer, ms':>10} {'share':>6} {'on paper':>9}")
    for n in widths:
        subspace = Subspace(n, dtype=torch.float32).load({"basis": torch.linalg.qr(torch.randn(n, n // 8))[0]})
        projection = Projection([subspace], n, torch.float32, CPU, form="low-rank")
        x, start = torch.randn(1, n, n), torch.randn(1, n, n)
        rows, weight = (torch.randn(count, n, requires_grad=True) for count in (held, n))
        project = fastest(partial(projection.remove_, x), 3, own)
        restore = fastest(partial(projection.restore_, x, start), 3, own)
        layer = fastest(partial(forward_and_backward, rows, weight), 3, own)
        share, paper = (project + restore) / layer, 8 * (n // 8) / (6 * held)
        print(f"{n:>6} {1e3 * project:>12.1f} {1e3 * restore:>12.1f} {1e3 * layer:>10.1f}", end=" ")
        print(f"{share:>6.0%} {paper:>9.0%}", flush=True)


def forward_and_backward(rows: Tensor, weight: Tensor) -> None:
    torch.autograd.grad((rows @ weight.mT).sum(), [rows, weight])


def narrow_bases(n: int = 1024, rank: int = 256) -> None:
    """A weight that moved freely outside a rounded basis, seen by the true directions."""
    print(f"\nBases in narrower types, n = {n}, k = {rank}: the share of a projected change inside the true directions")
    basis = torch.linalg.qr(torch.randn(n, rank, dtype=torch.float64))[0]
    scale = basis.abs().amax(dim=0) / 127
    forms = {
        "float32": basis.float(),
        "bfloat16": basis.bfloat16(),
        "int8, one scale a column": (basis / scale).round() * scale,
    }
    change = torch.randn(64, n, dtype=torch.float64)
    for name, stored in forms.items():
        again = torch.linalg.qr(stored.double())[0]  # orthonormal, as it must be for a projection
        moved = change - (change @ again) @ again.mT
        print(f"{name:>26} {float((moved @ basis).norm() / moved.norm()):.1e}")


@dataclass(frozen=True)
class Transformer:
    """The linear layers of a decoder: (inputs, outputs) of each."""

    name: str
    depth: int
    hidden: int
    keys: int
    inner: int

    def layers(self) -> list[tuple[int, int]]:
        h = self.hidden
        return [
            (h, h),
            (h, self.keys),
            (h, self.keys),
            (h, h),
            (h, self.inner),
            (h, self.inner),
            (self.inner, h),
        ] * self.depth


MODELS = (Transformer("1B", 16, 2048, 512, 8192), Transformer("7B", 32, 4096, 4096, 11008))


def on_paper(share: float = 0.125, width: int = 1024, tokens: int = 100_000, rows: int = 4096) -> None:
    """Bytes and flops by the formulas in docs/scale.md, for k = share·n directions in every layer."""
    print(
        f"\nOn paper: float32, k = {share:g}·n, sketch {width}, {tokens:,} tokens to consolidate, {rows:,} rows a step"
    )
    for model in MODELS:
        layers = model.layers()
        numbers, inputs = sum(n * m for n, m in layers), [n for n, _ in layers]
        step, layer = sum(8 * n * m * share * n for n, m in layers) / 1e12, 6 * rows * numbers / 1e12
        amounts = {
            "numbers in the linear layers, 1e9": numbers / 1e9,
            "weights, and as much for W₀, GB": 4 * numbers / 1e9,
            "bases, and as much for projections, GB": sum(4 * n * share * n for n in inputs) / 1e9,
            "all Gram matrices, GB": sum(8 * n * n for n in inputs) / 1e9,
            "all sketches, GB": sum(8 * n * min(n, width + 1) for n in inputs) / 1e9,
            "projecting and restoring a step, TFLOP": step,
            "forward and backward of the layers, TFLOP": layer,
            "share of a step": step / layer,
            "forward passes of a consolidation, PFLOP": 2 * tokens * numbers / 1e15,
            "sums of the Grams, float64 PFLOP": sum(tokens * n * n for n in inputs) / 1e15,
            "their eigenvectors, float64 PFLOP": sum(9 * n**3 for n in inputs) / 1e15,
            "sums of the sketches, float64 PFLOP": sum(4 * tokens * n * width for n in inputs) / 1e15,
            "their eigenvectors, float64 PFLOP ": sum(6 * n * width**2 + 18 * width**3 for n in inputs) / 1e15,
        }
        print(model.name)
        for name, amount in amounts.items():
            print(f"    {name:<44}{amount:>8.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="1024,2048,4096")
    parser.add_argument("--paper", action="store_true", help="the cost model alone")
    parser.add_argument(
        "--one", nargs=3, type=int, metavar=("DECAY", "SKETCH", "N"), help="one consolidation; 0: exact"
    )
    chosen = parser.parse_args()
    if chosen.one:
        return consolidate_once(*chosen.one)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not chosen.paper:
        widths = [int(width) for width in chosen.widths.split(",")]
        print(machine())
        consolidations(widths)
        steps(widths)
        narrow_bases()
    on_paper()
    return None


if __name__ == "__main__":
    main()
