"""A state whose checksum is right and whose content makes no sense is refused; whatever a user can make is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import frozen_copy, same
from torch import Tensor, nn

from remnant import GPM, StateError, Subspace
from remnant.files import write_file
from remnant.memory import codec

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


class Words(nn.Module):
    """An embedding, a layer and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out, self.norm = nn.Embedding(9, 4), nn.Linear(4, 3), nn.BatchNorm1d(4)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.norm(self.embed(words)))


@pytest.fixture(scope="module")
def recalling() -> tuple[Words, dict[str, Any]]:
    """A network, and the state of its memory after two tasks."""
    torch.manual_seed(0)
    model = Words()
    memory = GPM(model, 0.5, norm="per-task", recall=True)
    for words in ([0, 1, 2], [3, 0, 4]):
        memory.consolidate([(torch.tensor(words), torch.tensor([0, 1, 2]))], recall=True)
    return model, memory.state_dict()


def basis(state: dict[str, Any]) -> dict[str, Tensor]:
    held: dict[str, Tensor] = state["layers"]["out"]["subspaces"][0]
    assert held["basis"].shape[1]
    return held


def axes(state: dict[str, Any]) -> dict[str, Tensor]:
    held: dict[str, Tensor] = state["layers"]["embed"]["subspaces"][0]
    return held


def task(state: dict[str, Any], number: int = 1) -> dict[str, Any]:
    record: dict[str, Any] = state["recall"]["tasks"][number]
    return record


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "NaN in a basis": lambda s: basis(s)["basis"].view(-1)[0].fill_(torch.nan),
    "an infinite basis": lambda s: basis(s)["basis"].fill_(torch.inf),
    "a basis that is not orthogonal": lambda s: basis(s)["basis"].add_(0.001),
    "a basis that is not normal": lambda s: basis(s)["basis"].mul_(1.001),
    "a basis of zeros": lambda s: basis(s)["basis"].zero_(),
    "a basis of whole numbers": lambda s: basis(s).update(basis=torch.eye(5, dtype=torch.long)[:, :2]),
    "a basis in half precision": lambda s: basis(s).update(basis=basis(s)["basis"].half()),
    "no basis": lambda s: basis(s).update(basis=None),
    "a basis with too many columns": lambda s: basis(s).update(basis=torch.eye(6)[:5]),
    "basis and complement": lambda s: basis(s).update(complement=basis(s)["basis"]),
    "a weight of 2": lambda s: basis(s).update(weights=torch.full((basis(s)["basis"].shape[1],), 2.0)),
    "a weight of NaN": lambda s: basis(s).update(weights=torch.full((basis(s)["basis"].shape[1],), torch.nan)),
    "weights in words": lambda s: basis(s).update(weights="heavy"),
    "NaN among the axes": lambda s: axes(s)["axes"].fill_(torch.nan),
    "an axis above 1": lambda s: axes(s)["axes"].fill_(1.5),
    "an axis below 0": lambda s: axes(s)["axes"].fill_(-0.5),
    "axes of another size": lambda s: axes(s).update(axes=torch.ones(8)),
    "an order with an axis twice": lambda s: axes(s)["order"].fill_(0),
    "an order below 0": lambda s: axes(s)["order"].sub_(9),
    "an order beyond the axes": lambda s: axes(s)["order"].add_(2**60),
    "an order without a used axis": lambda s: axes(s).update(order=axes(s)["order"][1:]),
    "an order of floats": lambda s: axes(s).update(order=axes(s)["order"].double()),
    "no order": lambda s: axes(s).pop("order"),
    "tasks -1": lambda s: s.update(tasks=-1),
    "tasks 2.0": lambda s: s.update(tasks=2.0),
    "infinitely many tasks": lambda s: s.update(tasks=float("inf")),
    "another number of tasks": lambda s: s.update(tasks=1),
    "tasks true": lambda s: s.update(tasks=True),
    "steps -1": lambda s: s.update(steps=-1),
    "steps NaN": lambda s: s.update(steps=float("nan")),
    "no steps": lambda s: s.update(steps=None),
    "unsettled in words": lambda s: s.update(unsettled="yes"),
    "no layers": lambda s: s.update(layers=None),
    "a layer without content": lambda s: s["layers"].update(out=None),
    "no capacities": lambda s: s["layers"]["out"].update(capacities=None),
    "added too short": lambda s: s["layers"]["out"]["added"].pop(),
    "added too long": lambda s: s["layers"]["out"]["added"].append(0),
    "added more than the rank": lambda s: s["layers"]["out"].update(added=[5, 5]),
    "added below 0": lambda s: s["layers"]["out"].update(added=[-1, 1]),
    "added a half": lambda s: s["layers"]["out"].update(added=[0.5, 0.5]),
    "an anchor of whole numbers": lambda s: s["anchors"].update({"out.bias": torch.zeros(3, dtype=torch.long)}),
    "an anchor of NaN": lambda s: s["anchors"].update({"out.bias": torch.full((3,), torch.nan)}),
    "an anchor in words": lambda s: s["anchors"].update({"out.bias": "zero"}),
    "no anchors": lambda s: s.update(anchors=None),
    "no buffers": lambda s: s.update(buffers=None),
    "an unknown buffer": lambda s: s["buffers"].update(odd=torch.zeros(1)),
    "an unknown module in eval mode": lambda s: s["kept_in_eval"].append("odd"),
    "a module in eval mode without a name": lambda s: s["kept_in_eval"].append([]),
    "no recall": lambda s: s.update(recall=None),
    "recall in words": lambda s: s.update(recall="yes"),
    "one record too few": lambda s: s["recall"]["tasks"].pop(),
    "an empty record": lambda s: task(s).clear(),
    "a rank beyond the rank": lambda s: task(s)["ranks"].update(out=[5]),
    "a falling rank": lambda s: task(s)["ranks"].update(out=[0]),
    "a rank below 0": lambda s: task(s, 0)["ranks"].update(out=[-1]),
    "a rank beyond the axes": lambda s: task(s)["ranks"].update(embed=[9]),
    "ranks of an unknown layer": lambda s: task(s)["ranks"].update(odd=[1]),
    "ranks without a layer": lambda s: task(s)["ranks"].pop("out"),
    "ranks of two groups": lambda s: task(s)["ranks"].update(out=[1, 1]),
    "an own value without a tensor": lambda s: task(s)["own"].update({"norm.weight": None}),
    "an own value of NaN": lambda s: task(s, 0)["own"]["norm.running_mean"].fill_(torch.nan),
    "an own value of another shape": lambda s: task(s)["own"].update({"norm.weight": torch.ones(5)}),
    "an own value of an unknown tensor": lambda s: task(s)["own"].update(odd=torch.ones(4)),
    "an unknown first layer": lambda s: task(s).update(first_layer="odd"),
    "inputs outside [0, 1]": lambda s: task(s)["inputs"][0]["axes"].fill_(7),
    "no inputs": lambda s: task(s)["inputs"].clear(),
    "a truncation of an unknown task": lambda s: s["recall"]["truncations"][0].update(task=2),
    "a truncation in words": lambda s: s["recall"]["truncations"][0].update(loss="low"),
    "truncations of nothing": lambda s: s["recall"].update(truncations=[None]),
    "settings in words": lambda s: s["settings"].update(protect=[5]),
    "an infinite threshold": lambda s: s["settings"].update(threshold=float("inf")),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_state_with_the_right_checksum_is_refused(
    forgery: str, recalling: tuple[Words, dict[str, Any]], tmp_path: Path
) -> None:
    model, state = recalling
    path = tmp_path / "memory"
    state = frozen_copy(state)
    GPM.load(written(path, state), model)
    FORGED[forgery](state)
    with pytest.raises(StateError):
        GPM.load(written(path, state), model)


def written(path: Path, state: dict[str, Any]) -> Path:
    write_file(path, *codec.pack(state))
    return path


def test_a_complex_anchor_is_refused(memory: GPM) -> None:
    state = frozen_copy(memory.state_dict())
    state["anchors"]["out.bias"] = torch.zeros(3, dtype=torch.complex64)
    with pytest.raises(StateError, match=r"out\.bias is torch\.complex64 and not torch\.float32"):
        memory.load_state_dict(state)


def test_a_state_in_double_precision_is_converted(memory: GPM) -> None:
    before = frozen_copy(memory.state_dict())
    state = frozen_copy(before)
    state["anchors"] = {name: anchor.double() for name, anchor in state["anchors"].items()}
    memory.load_state_dict(state)
    assert same(memory.state_dict(), before)


def test_directions_that_a_user_added_or_let_go_are_saved_and_loaded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 2, bias=False))
    memory = GPM(model, threshold=0.5)
    memory.consolidate(torch.arange(4))
    axes, dense = (memory.subspaces[name] for name in "01")
    assert isinstance(axes, Subspace)
    assert isinstance(dense, Subspace)
    axes.weights = torch.zeros(axes.rank)
    dense.grow(torch.eye(6), 0.8)
    dense.weights = torch.full((dense.rank,), 0.5)
    memory.save(tmp_path / "memory")
    assert same(GPM.load(tmp_path / "memory", model).state_dict(), memory.state_dict())
