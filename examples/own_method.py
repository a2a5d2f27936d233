"""A method of your own, in one file: after each task, the network goes back a part of the way that the task took it.

Run it like a built-in method, on any benchmark:

    remnant run permuted-digits examples/own_method.py:PartOfTheWay --seeds 3
    remnant run permuted-digits finetune,gpm --seeds 3
    remnant compare runs/

or run this file, which does the same for one seed.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch

from remnant.data import Split, Task
from remnant.methods import Method
from remnant.models import Network
from remnant.options import number


class PartOfTheWay(Method):
    """SGD. After each task but the first, θ ← θ* + share·(θ − θ*), where θ* are the weights that the task started from."""

    def __init__(self, network: Network, *, share: Annotated[float, number(0, 1)] = 0.5, **options: Any) -> None:
        super().__init__(network, **options)
        self.share = share
        # Declared state: saving, resuming and counting bytes follow from it.
        self.keep("start_weights", [p.detach().clone() for p in self.parameters])

    @torch.no_grad()
    def finish(self, task: Task, train: Split) -> None:
        for weight, old in zip(self.parameters, self.start_weights, strict=True):
            if self.task:
                weight.lerp_(old, 1 - self.share)
            old.copy_(weight)


def main() -> None:
    from remnant.experiments import Plan, resolve, run

    with TemporaryDirectory() as folder:
        for method in (f"{__file__}:PartOfTheWay", "finetune", "gpm"):
            (done,) = run(Plan(resolve("permuted-digits", method), seeds=(0,), root=Path(folder), device="cpu"))
            result = done.result()
            name = method.rpartition(":")[2]
            print(f"{name:<13} ACC {100 * result['acc']:5.1f} %  BWT {100 * result['bwt']:+6.1f} points")


if __name__ == "__main__":
    main()
