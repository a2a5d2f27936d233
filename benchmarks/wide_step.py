"""What protection adds to a step of a wide layer, n → n, with an attached optimizer, and what `consolidate` of it takes.

    python benchmarks/wide_step.py [--widths 4096,8192] [--rows 4096,8192,16384] [--share 0.125]

A first task fills `--share` of the layer's directions. The share of a step that the cost model in docs/scale.md expects is
printed beside the measured one. Without a GPU take small sizes: --widths 512 --rows 512.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import torch
from setting import best_device
from timing import fastest, machine, now
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from remnant import GPM

OPTIMIZERS: dict[str, tuple[Callable[[Iterable[Tensor]], Optimizer], int]] = {  # and the projections of a step
    "SGD": (lambda parameters: SGD(parameters, 0.1), 1),
    "AdamW": (lambda parameters: AdamW(parameters, 1e-5), 2),
}


def measure(name: str, n: int, rows: list[int], share: float, steps: int, device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Linear(n, n, bias=False, device=device)
    make, projections = OPTIMIZERS[name]
    optimizer = make(model.parameters())

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    # As within a network, a gradient of the inputs is needed too.
    inputs = {count: torch.randn(count, n, device=device, requires_grad=True) for count in rows}
    plain = {count: fastest(lambda x=x: step(x), steps) for count, x in inputs.items()}  # type: ignore[misc]
    directions = max(1, int(share * n))
    first = torch.randn(2 * n, directions, device=device) @ torch.randn(directions, n, device=device)
    memory = GPM(model, threshold=1 - 1e-6)
    memory.attach(optimizer)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = now()
    memory.consolidate(first.split(512))
    consolidation = now() - start
    peak = (torch.cuda.max_memory_allocated() - before) / 1e9 if device.type == "cuda" else float("nan")
    (layer,) = memory.report().layers
    for count, x in inputs.items():
        protected = fastest(lambda x=x: step(x), steps)  # type: ignore[misc]
        on_paper = projections * 4 * layer.rank / (6 * count)
        print(
            f"| {name} | {n:,} | {layer.rank:,} | {count:,} | {1e3 * plain[count]:.2f} | {1e3 * protected:.2f} | "
            f"{100 * (protected / plain[count] - 1):.1f} % | {100 * on_paper:.1f} % | {consolidation:.2f} | {peak:.2f} | "
            f"{memory.verify().worst:.0e} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="4096,8192")
    parser.add_argument("--rows", default="4096,8192,16384")
    parser.add_argument("--share", type=float, default=0.125, help="of the directions that the first task fills")
    parser.add_argument("--steps", type=int, default=16, help="of which the fastest counts")
    chosen = parser.parse_args()
    print(machine())
    print(
        "| optimizer | n | k | rows | step, ms | protected | overhead | on paper | consolidate, s | its peak, GB | leak |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    rows = [int(count) for count in chosen.rows.split(",")]
    for name in OPTIMIZERS:
        for n in chosen.widths.split(","):
            measure(name, int(n), rows, chosen.share, chosen.steps, best_device())


if __name__ == "__main__":
    main()
