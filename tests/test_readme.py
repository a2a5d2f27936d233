"""The README's first block runs as it stands, with a model of the reader's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

README = Path(__file__).parents[1] / "README.md"
pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")  # small layers, for speed


class HeadPerTask(nn.Module):
    """A body that all tasks share, and one head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(12, 40), nn.ModuleList(nn.Linear(40, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        task = 0 if x[:, 6:].abs().sum() == 0 else 1  # each task has its own half of the inputs
        return self.heads[task](self.body(x).relu())  # type: ignore[no-any-return]


def block(*, plain: bool = False) -> str:
    """The first block without its diff signs; with `plain`, also without the added lines."""
    found = re.search(r"```diff\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    assert {line[:2] for line in lines} == {"  ", "+ "}
    return "\n".join(line[2:] for line in lines if not (plain and line[0] == "+"))


def moved(model: nn.Module, code: str) -> float:
    """The relative change of the first task's outputs while `code` learns the second."""
    torch.manual_seed(0)
    x, y = torch.randn(80, 12), torch.arange(80) % 2
    halves = [x.clone(), x.clone()]
    halves[0][:, 6:] = 0
    halves[1][:, :6] = 0
    before = []

    def tasks() -> Iterator[SimpleNamespace]:
        for half in halves:
            yield SimpleNamespace(loader=DataLoader(TensorDataset(half, y), batch_size=4))
            before.append(model(halves[0]).detach())

    names: dict[str, Any] = {"AdamW": AdamW, "model": model, "tasks": tasks(), "loss_fn": nn.functional.cross_entropy}
    exec(compile(code, str(README), "exec"), names)
    return float((model(halves[0]).detach() - before[0]).norm() / before[0].norm())


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 2))


def test_the_first_block_protects_a_model_of_the_readers_own() -> None:
    assert moved(small(), block()) < 0.5 * moved(small(), block(plain=True))


def test_heads_are_left_free_as_the_line_below_the_block_says() -> None:
    (option,) = re.findall(r"`(exclude=\[.*?\])`", README.read_text(encoding="utf-8"))
    code = block().replace("threshold=0.97", f"threshold=0.97, {option}")
    assert option in code
    assert moved(HeadPerTask(), code) < 0.5 * moved(HeadPerTask(), block(plain=True))
    with pytest.raises(ValueError, match="matches nothing in the model"):
        moved(small(), code)
