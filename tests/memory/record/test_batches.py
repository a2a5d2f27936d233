"""Batches of every shape are read alike, a bad one is refused, and the memory stays as it was."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from bitwise import frozen_copy, same
from small_net import Net, data
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from remnant import GPM, ConsolidationError

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


@pytest.mark.parametrize(
    "empty", [[], iter(()), DataLoader(TensorDataset(torch.empty(0, 8)))], ids=["list", "used", "loader"]
)
def test_an_empty_loader_is_an_error_not_an_empty_memory(memory: GPM, empty: Any) -> None:
    before = frozen_copy(memory.state_dict())
    with pytest.raises(ConsolidationError, match="no batches"):
        memory.consolidate(empty)
    assert same(memory.state_dict(), before)
    with pytest.raises(ValueError, match="no batches"):
        memory.verify(empty)


def test_something_that_is_no_series_of_batches_is_named(memory: GPM) -> None:
    with pytest.raises(TypeError, match=r"DataLoader.*not int"):
        memory.consolidate(3)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_inf_are_refused_and_named_and_nothing_is_lost(memory: GPM, poison: float) -> None:
    before = frozen_copy(memory.state_dict())
    bad = data()
    bad[3, 2] = poison
    with pytest.raises(ConsolidationError, match=r"'conv'.*NaN or inf"):
        memory.consolidate([data(), bad, data()])
    assert same(memory.state_dict(), before)
    memory.consolidate(data())


@pytest.mark.parametrize("where", ["loader", "forward", "shape", "grow"])
def test_an_error_in_the_middle_leaves_memory_and_model_as_they_were(
    memory: GPM, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = memory._model.train()
    before, weights = frozen_copy(memory.state_dict()), frozen_copy(dict(model.state_dict()))

    def loader() -> Any:
        yield data()
        if where == "loader":
            raise OSError("the disk is gone")
        yield torch.randn(4, 5) if where == "shape" else data()

    def forward(model: nn.Module, batch: Tensor) -> None:
        model(batch)
        if where == "forward":
            raise KeyError("labels")

    if where == "grow":
        last = memory._protection.weights[-1].subspaces[0]
        grow = type(last).grow
        monkeypatch.setattr(
            type(last),
            "grow",
            lambda self, *args: (
                (_ for _ in ()).throw(RuntimeError("eigh")) if self.capacity == 13 else grow(self, *args)
            ),
        )
    with pytest.raises((OSError, KeyError, RuntimeError)):
        memory.consolidate(loader(), forward=forward)
    monkeypatch.undo()
    assert same(memory.state_dict(), before)
    assert same(dict(model.state_dict()), weights)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules()), "no hook stays behind"
    memory.consolidate(data())


def test_a_failing_forward_tells_how_batches_are_passed(memory: GPM) -> None:
    with pytest.raises(RuntimeError) as failed:
        memory.consolidate([torch.randn(4, 5)])
    assert any("forward=lambda model, batch" in note for note in failed.value.__notes__)


@pytest.mark.parametrize("width", [7, 8], ids=["no multiple", "a multiple"])
def test_an_input_of_the_wrong_width_names_the_layer(width: int) -> None:
    memory = GPM(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    with pytest.raises(ConsolidationError, match=rf"'0' takes rows of shape \(N, 4\), and was given \(5, {width}\)"):
        memory.consolidate([torch.randn(5, width)])
    assert len(memory) == 0


def test_every_shape_of_batches_gives_the_same_memory() -> None:
    x, y = data(rank=4), torch.zeros(24)
    model = Net().double()
    x = x.double()
    pair = namedtuple("pair", "x y")
    shapes: dict[str, Any] = {
        "one tensor": x,
        "list of tensors": list(x.split(5)),
        "tuples": [(a, b) for a, b in zip(x.split(7), y.split(7), strict=True)],
        "lists": [[a, b] for a, b in zip(x.split(7), y.split(7), strict=True)],
        "named tuples": [pair(a, b) for a, b in zip(x.split(7), y.split(7), strict=True)],
        "one dict": {"x": x},
        "dicts": [{"x": part} for part in x.split(1)],
        "loader": DataLoader(TensorDataset(x, y), batch_size=9),
        "generator": (part for part in x.split(11)),
    }
    results = {}
    for name, batches in shapes.items():
        memory = GPM(model, threshold=0.97)
        added = memory.consolidate(batches)
        results[name] = (added, projector(memory))
    memory = GPM(model, threshold=0.97)
    results["own forward"] = (
        memory.consolidate([{"odd": part} for part in x.split(6)], forward=lambda m, batch: m(batch["odd"])),
        projector(memory),
    )
    added, reference = results["one tensor"]
    for name, (other, matrix) in results.items():
        assert other == added, name
        torch.testing.assert_close(matrix, reference, atol=1e-9, rtol=0, msg=name)


def projector(memory: GPM) -> Tensor:
    """M·Mᵀ of the hidden layer, which is the same for every basis of the subspace."""
    basis = memory.subspaces["hidden"].basis
    return basis @ basis.mT


def test_consolidating_does_not_touch_modes_statistics_or_gradients(net: Net) -> None:
    net.train()
    net.norm.eval()
    net(data()).sum().backward()
    grads = {name: p.grad.clone() for name, p in net.named_parameters()}
    state = frozen_copy(dict(net.state_dict()))
    GPM(net, norm="free").consolidate(data())
    assert (net.training, net.norm.training, net.out.training) == (True, False, True)
    assert same(dict(net.state_dict()), state)
    assert all(torch.equal(p.grad, grads[name]) for name, p in net.named_parameters())


def test_a_bare_pair_of_inputs_and_labels_is_not_taken_for_two_batches() -> None:
    memory = GPM(nn.Linear(4, 3))
    with pytest.raises(TypeError, match=r"\[\(x, y\)\]"):
        memory.consolidate((torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)))
    assert len(memory) == 0
    assert memory.consolidate(torch.randn(8, 4).split(3)) == {"model": 4}  # split gives a tuple too: of batches


def test_batches_without_examples_are_refused() -> None:
    memory = GPM(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(ConsolidationError, match=r"None of the protected layers \('0'\) got a single example"):
        memory.consolidate([torch.zeros(0, 4)])
    assert len(memory) == 0
