"""What goes wrong in a user's hands: each a clear error or a defined behaviour, and nothing lost."""

from __future__ import annotations

import copy
import json
import os
import pickle
import warnings
from collections import Counter, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from remnant import GPM, ConsolidationError, LeakError, StateError
from remnant.memory import storage
from remnant.memory.batches import sample

pytestmark = pytest.mark.filterwarnings("ignore:Full, and from now on fixed")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1, groups=1)
        self.norm = nn.BatchNorm1d(4)
        self.depthwise = nn.Conv1d(4, 4, 3, padding=1, groups=4, bias=False)
        self.hidden = nn.Linear(32, 12)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.depthwise(F.relu(self.norm(self.conv(x.unsqueeze(1)))))
        return self.out(F.relu(self.hidden(maps.flatten(1))))


def data(rank: int = 2, count: int = 24, width: int = 8) -> Tensor:
    """Rows in few directions, so that memories have room left."""
    return torch.randn(count, rank) @ torch.randn(rank, width) + torch.randn(width)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    steps: int = 10,
    loss: Callable[[Tensor], Tensor] = lambda y: (y - 1).square().mean(),
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)


def frozen_copy(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: frozen_copy(value) for key, value in state.items()}
    return [frozen_copy(value) for value in state] if isinstance(state, list) else state


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    assert not isinstance(a, tuple)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def memory(net: Net) -> GPM:
    """One task old."""
    memory = GPM(net, threshold=0.95)
    memory.consolidate(data())
    return memory


# --- thresholds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 0.0, -0.1, 1.0001, 2, float("nan"), "0.97", True, None], ids=repr)
def test_a_threshold_outside_zero_to_one_is_refused_at_once(net: Net, value: Any) -> None:
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        GPM(net, threshold=value)
    with pytest.raises(ValueError, match=r"threshold\['out'\].*\(0, 1\]"):
        GPM(net, threshold={"out": value, "*": 0.9})
    with pytest.raises(ValueError, match=r"start.*\(0, 1\]"):
        GPM.schedule(value)


@pytest.mark.parametrize("value", [0.0, 1.5, float("nan"), None], ids=repr)
def test_a_threshold_function_that_strays_is_named_and_nothing_is_lost(memory: GPM, value: Any) -> None:
    memory = GPM(memory.model, threshold=lambda layer, task: value if (layer, task) == ("out", 1) else 0.9)
    memory.consolidate(data())
    before = frozen_copy(memory.state_dict())
    with pytest.raises(ValueError, match=r"threshold\('out', 1\).*\(0, 1\]"):
        memory.consolidate(data())
    assert same(memory.state_dict(), before)


def test_threshold_patterns_must_cover_every_layer_and_mean_one(net: Net) -> None:
    with pytest.raises(ValueError, match=r"No threshold pattern matches layer 'depthwise'"):
        GPM(net, threshold={"conv": 0.9})
    with pytest.raises(ValueError, match=r"\['hiden'\] matches no layer.*'hidden'"):
        GPM(net, threshold={"hiden": 0.9, "*": 0.95})


def test_threshold_patterns_apply_in_the_order_they_are_written(net: Net) -> None:
    x = torch.randn(40, 8)
    low = GPM(net, threshold={"hidden": 0.3, "*": 0.9}).consolidate(x)
    high = GPM(net, threshold={"*": 0.9, "hidden": 0.3}).consolidate(x)
    assert low["hidden"] < high["hidden"]
    assert low["conv"] == high["conv"]


def test_a_schedule_rises_with_the_tasks_and_stops_at_one(net: Net) -> None:
    schedule = GPM.schedule(0.97, 0.02)
    assert [round(schedule("any", task), 10) for task in range(4)] == [0.97, 0.99, 1.0, 1.0]
    asked: list[tuple[str, int]] = []
    memory = GPM(net, threshold=lambda layer, task: asked.append((layer, task)) or schedule(layer, task))
    memory.consolidate(data())
    memory.consolidate(data())
    assert set(asked) == {(layer, task) for layer in memory.subspaces for task in (0, 1)}


# --- batches ------------------------------------------------------------------------------------------------------


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
    model = memory.model.train()
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
        last = memory._plan.weights[-1].subspaces[0]
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
    """M·Mᵀ of the hidden layer: the subspace, whatever its basis."""
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


# --- samples ------------------------------------------------------------------------------------------------------


def test_samples_are_seeded_and_do_not_depend_on_batching() -> None:
    x = torch.arange(100.0).unsqueeze(1)

    def drawn(size: int, seed: int = 3) -> list[float]:
        return torch.cat(
            [batch[0] for batch in sample(zip(x.split(size), x.split(size), strict=True), 12, seed)]
        ).tolist()

    assert drawn(1) == drawn(7) == drawn(100) == drawn(7)
    assert len({value for (value,) in drawn(7)}) == 12
    assert drawn(7, seed=4) != drawn(7)


def test_samples_are_drawn_evenly_from_the_whole_stream() -> None:
    counts: Counter[int] = Counter()
    for seed in range(400):
        for batch in sample(torch.arange(20).split(6), 5, seed):
            counts.update(batch.tolist())
    assert sum(counts.values()) == 400 * 5
    assert min(counts[i] for i in range(20)) > 65  # 100 expected, σ about 9
    assert max(counts.values()) < 135


def test_samples_keep_inputs_and_labels_together_and_the_streams_batch_size() -> None:
    x = torch.arange(30)
    batches = [{"ids": part, "pair": (part * 2, part * 3), "note": "same"} for part in x.split(4)]
    drawn = list(sample(batches, 10, 0))
    assert [len(batch["ids"]) for batch in drawn] == [4, 4, 2]
    for batch in drawn:
        assert torch.equal(batch["pair"][0], batch["ids"] * 2)
        assert torch.equal(batch["pair"][1], batch["ids"] * 3)
        assert batch["note"] == "same"


def test_samples_of_batches_padded_to_their_own_length() -> None:
    batches = [torch.zeros(6, length, dtype=torch.long) for length in (3, 5, 4)]
    drawn = list(sample(batches, 15, 0))
    assert sum(len(batch) for batch in drawn) == 15
    assert {batch.shape[1] for batch in drawn} == {3, 4, 5}


def test_more_samples_than_there_are_is_all_of_them_and_none_is_none() -> None:
    x = torch.randn(10, 2)
    assert torch.equal(torch.cat(list(sample(x.split(3), 50, 0))), x)
    assert list(sample(x.split(3), 0, 0)) == []


def test_a_layer_reads_only_as_many_examples_as_it_is_told(net: Net) -> None:
    x = torch.randn(20, 8)
    memory = GPM(net, 0.999)
    added = memory.consolidate([x], layer_samples={"hidden": 2})
    assert added["hidden"] == 2
    assert added["out"] > 2
    with pytest.raises(ValueError, match=r"layer_samples\['hiden'\] matches no layer. Did you mean 'hidden'\?"):
        memory.consolidate([x], layer_samples={"hiden": 2})
    with pytest.raises(ValueError, match=r"layer_samples\['out'\] is 0: it must be a positive whole number"):
        memory.consolidate([x], layer_samples={"out": 0})
    assert memory.tasks == 1


def test_samples_limit_what_is_remembered(net: Net) -> None:
    x = torch.randn(50, 8)
    few, again, all_of_it = (GPM(net, threshold=1.0 - 1e-9) for _ in range(3))
    assert few.consolidate([x], samples=3)["out"] == 3
    again.consolidate(list(x.split(7)), samples=3)
    assert few.subspaces["out"].rank == again.subspaces["out"].rank
    torch.testing.assert_close(few.subspaces["out"].remove(again.subspaces["out"].basis.mT).norm(), torch.tensor(0.0))
    with pytest.warns(UserWarning, match="Full"):
        assert all_of_it.consolidate(x, samples=1000)["out"] > 3


@pytest.mark.parametrize("samples", [0, -1, 2.5, "all"])
def test_samples_must_be_a_positive_whole_number(memory: GPM, samples: Any) -> None:
    with pytest.raises(ValueError, match="positive whole number"):
        memory.consolidate(data(), samples=samples)


def test_samples_need_tensors_to_draw_from(memory: GPM) -> None:
    with pytest.raises(TypeError, match="samples= needs batches of tensors"):
        memory.consolidate(["text"], samples=3)


# --- layers that are not called -----------------------------------------------------------------------------------


class SkipsOne(nn.Module):
    """`spare` is called in forward, through a function, or not at all."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layer, self.spare = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "function":
            return self.layer(x) + F.linear(x, self.spare.weight, self.spare.bias)
        return self.layer(x)


def test_a_layer_that_no_task_uses_adds_nothing_and_stops_nothing() -> None:
    model = SkipsOne("not at all")
    memory = GPM(model)
    optimizer = memory.attach(adamw(model))
    for _ in range(2):
        train(model, optimizer, data())
        added = memory.consolidate(data())
    assert added["spare"] == 0
    assert memory.subspaces["spare"].rank == 0
    memory.verify()


def test_a_layer_trained_through_a_function_is_an_error_that_names_it() -> None:
    model = SkipsOne("function")
    memory = GPM(model)
    train(model, memory.attach(adamw(model)), data())
    before = frozen_copy(memory.state_dict())
    with pytest.raises(ConsolidationError, match=r"'spare' got gradients.*never called.*exclude"):
        memory.consolidate(data())
    assert same(memory.state_dict(), before)
    memory.consolidate(data(), forward=lambda m, x: (m(x), m.spare(x)))  # the remedy the message gives


# --- other types --------------------------------------------------------------------------------------------------


def test_a_model_made_float64_after_creation_is_protected_on(memory: GPM, net: Net) -> None:
    net.double()
    x = data().double()
    train(net, memory.attach(adamw(net)), x)
    assert memory.verify(x).worst < 1e-5
    memory.consolidate(x)
    train(net, memory.attach(adamw(net)), data().double())
    memory.verify()


def test_a_model_made_bfloat16_after_creation_is_protected_as_far_as_it_rounds(memory: GPM, net: Net) -> None:
    net.bfloat16()
    x = data().bfloat16()
    train(net, memory.attach(torch.optim.AdamW(net.parameters(), lr=0.05)), x, steps=30)
    result = memory.verify()
    assert all(check.leak <= max(1e-4, check.rounding) for check in result.layers)
    memory.consolidate(x)
    assert memory.tasks == 2
    memory.verify()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_inside_autocast_is_projected_in_full(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    """Some loops step inside the autocast block: bf16 products would leak a thousandth of every step."""
    model = nn.Linear(8, 4)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(data())
    chosen = memory.attach(optimizer(model.parameters(), lr=0.05))
    with torch.autocast("cpu", torch.bfloat16):
        train(model, chosen, torch.randn(30, 8))
    assert memory.verify().worst < 1e-5


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_reduced_float32_precision_does_not_leak_and_is_left_as_it_was(optimizer: Callable[..., Any]) -> None:
    model = nn.Linear(8, 4)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(data())
    chosen = memory.attach(optimizer(model.parameters(), lr=0.05))
    torch.set_float32_matmul_precision("medium")
    try:
        train(model, chosen, torch.randn(30, 8))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert memory.verify().worst < 1e-5


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_do_not_reach_remembered_rows(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Embedding(10, 4, sparse=True)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(torch.tensor([[0, 1, 2]]))
    before = model.weight.detach().clone()
    chosen = memory.attach(optimizer(model.parameters(), lr=0.1))
    train(model, chosen, torch.arange(6), steps=5)
    assert torch.equal(model.weight[:3], before[:3])
    assert not torch.equal(model.weight[3:6], before[3:6])


# --- another device -----------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_model_moved_to_a_gpu_and_back_takes_its_memory_along(memory: GPM, net: Net, tmp_path: Path) -> None:
    for device in ("cuda", "cpu"):
        net.to(device)
        x = data()
        train(net, memory.attach(adamw(net)), x.to(device))
        assert memory.verify(x).worst < 1e-4, "batches go where the model is"
        memory.consolidate(x)
    memory.save(tmp_path / "memory")
    loaded = GPM.load(tmp_path / "memory", net.cuda())
    train(net, loaded.attach(adamw(net)), data().cuda())
    loaded.verify()


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_tf32_set_by_either_of_torchs_ways_does_not_leak(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32"
    try:
        model = nn.Linear(256, 64).cuda()
        memory = GPM(model, threshold=0.99)
        memory.consolidate(data(rank=40, count=400, width=256))
        train(model, memory.attach(optimizer(model.parameters(), lr=0.01)), torch.randn(64, 256).cuda(), steps=50)
        assert memory.verify().worst < 1e-4
        assert switch.fp32_precision == "tf32"
    finally:
        switch.fp32_precision = before


# --- full -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_full_layer_is_frozen_to_the_bit_and_said_so_once(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 2))
    memory = GPM(model, threshold={"0": 1.0, "2": 0.5})
    with pytest.warns(UserWarning, match=r"Full, and from now on fixed: 0\.") as caught:
        memory.consolidate(torch.randn(50, 4))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    before = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    chosen = memory.attach(optimizer(model.parameters(), lr=0.1))
    train(model, chosen, torch.randn(50, 4) * 10, steps=50)
    assert torch.equal(model[0].weight, before[0])
    assert torch.equal(model[0].bias, before[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.consolidate(torch.randn(50, 4))
    assert "full" in str(memory.report())
    assert memory.report().tasks_left == 0


def test_where_warnings_are_errors_nothing_is_half_done() -> None:
    model = nn.Linear(3, 2)
    memory = GPM(model, threshold=1.0)
    before = frozen_copy(memory.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="Full"):
            memory.consolidate(torch.randn(20, 3))
    assert same(memory.state_dict(), before)


# --- optimisers -----------------------------------------------------------------------------------------------------


def test_an_optimizer_without_the_protected_weights_is_refused(memory: GPM, net: Net) -> None:
    with pytest.raises(ValueError, match="holds none of the protected weights"):
        memory.attach(adamw(copy.deepcopy(net)))


def test_attaching_twice_is_attaching_once(memory: GPM, net: Net) -> None:
    optimizer = adamw(net)
    assert memory.attach(optimizer) is optimizer
    assert memory.attach(optimizer) is optimizer
    assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 1
    memory.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_detached_optimizer_is_free_and_the_memory_notices(memory: GPM, net: Net) -> None:
    optimizer = memory.attach(adamw(net))
    memory.detach(optimizer)
    train(net, optimizer, data())
    with pytest.raises(LeakError, match=r"'hidden'.*attached"):
        memory.verify()
    with pytest.warns(UserWarning, match=r"changed inside what earlier tasks use: .*hidden"):
        memory.consolidate(data())
    memory.verify()  # from here on, a new start


def test_two_optimizers_may_share_a_model(net: Net) -> None:
    memory = GPM(net, threshold=0.95)
    memory.consolidate(data())
    body = [p for name, p in net.named_parameters() if not name.startswith("out")]
    optimizers = [
        memory.attach(torch.optim.AdamW(body, lr=0.01, weight_decay=0.1)),
        memory.attach(torch.optim.SGD(net.out.parameters(), lr=0.1, momentum=0.9)),
    ]
    for _ in range(10):
        net.zero_grad()
        (net(data()) - 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert memory.verify().worst < 1e-4
    memory.detach(optimizers[0])
    assert not net.norm.training, "norms are held while any optimizer is attached"
    memory.detach(optimizers[1])
    assert net.norm.training


def test_a_hand_written_step_is_exact_with_project_and_restore(memory: GPM, net: Net) -> None:
    x = data()
    for _ in range(5):
        net.zero_grad()
        (net(x) - 1).square().mean().backward()
        memory.project()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad + 0.01 * parameter  # a decay no projection has seen
        memory.restore()
    assert memory.verify().worst < 1e-5


@pytest.mark.parametrize("replaced", ["out", "norm"])
def test_a_parameter_replaced_after_creation_is_noticed(memory: GPM, net: Net, replaced: str) -> None:
    setattr(net, replaced, copy.deepcopy(getattr(net, replaced)))
    for use in (
        lambda: memory.consolidate(data()),
        lambda: memory.attach(adamw(net)),
        lambda: memory.state_dict(),
        lambda: memory.load_state_dict({}),
    ):
        with pytest.raises(RuntimeError, match=rf"'{replaced}.*replaced"):
            use()


def test_rounding_does_not_add_up_over_many_steps_of_plain_sgd() -> None:
    """A layer with little room moves little, so that the rounding of a thousand steps would look like a leak."""
    model = nn.Linear(64, 32)
    memory = GPM(model, threshold=0.9999)
    x = torch.randn(500, 64) * torch.logspace(0, -2, 64) + 1
    memory.consolidate(x)
    optimizer = memory.attach(torch.optim.SGD(model.parameters(), lr=0.05))
    train(model, optimizer, x + 0.1, steps=1000)
    (check,) = memory.verify().layers
    assert 0 < check.leak <= max(1e-6, check.rounding)


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_saved_memory_is_the_memory_bit_for_bit(memory: GPM, net: Net, tmp_path: Path) -> None:
    train(net, memory.attach(adamw(net)), data())
    memory.consolidate(data())
    memory.save(tmp_path / "memory.safetensors")
    loaded = GPM.load(tmp_path / "memory.safetensors", copy.deepcopy(net))
    assert same(loaded.state_dict(), memory.state_dict())
    assert loaded.report() == memory.report()
    assert [path.name for path in tmp_path.iterdir()] == ["memory.safetensors"]


def test_a_memory_of_no_task_can_be_saved(net: Net, tmp_path: Path) -> None:
    GPM(net).save(tmp_path / "empty")
    assert GPM.load(str(tmp_path / "empty"), net).tasks == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "make", [adamw, lambda model: torch.optim.SGD(model.parameters(), lr=0.05)], ids=["adamw", "sgd"]
)
def test_training_goes_on_from_a_file_as_if_never_interrupted(
    make: Callable[[nn.Module], torch.optim.Optimizer], dtype: torch.dtype, tmp_path: Path
) -> None:
    tasks = [data().to(dtype) for _ in range(3)]

    def continued(stop: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        torch.manual_seed(1)
        model = Net().to(dtype)
        memory = GPM(model, threshold=GPM.schedule(0.9, 0.01))
        optimizer = memory.attach(make(model))
        for task, x in enumerate(tasks):
            train(model, optimizer, x, steps=5)
            if stop and task == 1:  # in the middle of a task
                memory.save(tmp_path / "memory")
                save_file(model.state_dict(), tmp_path / "model")
                state = optimizer.state_dict()
                model = Net().to(dtype)
                model.load_state_dict(load_file(tmp_path / "model"))
                memory = GPM.load(tmp_path / "memory", model)
                optimizer = memory.attach(make(model))
                optimizer.load_state_dict(state)
            train(model, optimizer, x, steps=5)
            memory.consolidate(x, samples=15)
        return dict(model.state_dict()), memory.state_dict()

    for interrupted, uninterrupted in zip(continued(stop=True), continued(stop=False), strict=True):
        assert same(interrupted, uninterrupted)


@pytest.mark.parametrize("cut", [0.0, 0.0005, 0.01, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_refused(memory: GPM, net: Net, tmp_path: Path, cut: float) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(StateError, match="cut short"):
        GPM.load(path, net)


def test_a_foreign_file_is_refused(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file(net.state_dict(), path)
    with pytest.raises(StateError, match=r"not written by GPM\.save"):
        GPM.load(path, net)
    path.write_text("threshold = 0.97\n")
    with pytest.raises(StateError, match="not a whole safetensors file"):
        GPM.load(path, net)
    with pytest.raises(FileNotFoundError):
        GPM.load(tmp_path / "missing", net)
    with pytest.raises(OSError):  # noqa: PT011
        GPM.load(tmp_path, net)


def test_a_pickle_is_refused_and_never_run(net: Net, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = tmp_path / "memory"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(StateError):
        GPM.load(path, net)
    torch.save({"memory": Trap()}, path)
    with pytest.raises(StateError):
        GPM.load(path, net)
    assert not (tmp_path / "sprung").exists()


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> None:
    """The file with its header or its tensors changed."""
    header, tensors = storage.read(path)
    change(header, tensors)
    save_file(tensors, path, {storage.KEY: json.dumps(header)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, _: header.update(version=99), "version 99.*reads version 1"),
        (lambda header, _: header.pop("version"), "version None"),
        (lambda header, _: header.pop("settings"), "damaged"),
        (lambda header, _: header.pop("layers"), "damaged"),
        (lambda header, _: header.update(tasks="many"), "damaged"),
        (lambda header, _: header["settings"].update(colour="red"), "does not fit"),
        (lambda header, _: header["settings"].update(threshold={"odd": 1}), "damaged"),
        (lambda header, _: header["layers"]["out"].pop("added"), "damaged"),
        (lambda header, _: header["layers"].pop("out"), "damaged"),
        (lambda _, tensors: tensors.pop("layers/out/0/basis"), "damaged"),
        (lambda _, tensors: tensors.pop("anchors/out.weight"), "out.weight"),
        (lambda _, tensors: tensors.update({"anchors/out.weight": torch.zeros(2, 2)}), "out.weight"),
        (lambda _, tensors: tensors.update({"layers/out/0/basis": torch.zeros(5, 2)}), "damaged"),
        (lambda _, tensors: tensors.update({"odd": torch.zeros(1)}), "damaged"),
        (lambda _, tensors: tensors.pop("statistics/norm.running_mean"), "norm.running_mean"),
        (lambda _, tensors: tensors.update({"statistics/norm.running_mean": torch.zeros(9)}), "norm.running_mean"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_or_newer_file_is_refused(
    memory: GPM, net: Net, tmp_path: Path, change: Callable[..., None], message: str
) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    rewritten(path, change)
    with pytest.raises(StateError, match=message):
        GPM.load(path, net)


def test_a_file_with_a_broken_header_is_refused(net: Net, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "memory", {storage.KEY: "{not json"})
    with pytest.raises(StateError, match="damaged"):
        GPM.load(tmp_path / "memory", net)
    save_file({"a": torch.zeros(1)}, tmp_path / "memory", {storage.KEY: "[1]"})
    with pytest.raises(StateError, match="damaged"):
        GPM.load(tmp_path / "memory", net)


def test_the_state_of_another_model_is_refused_and_changes_nothing(memory: GPM, tmp_path: Path) -> None:
    memory.save(tmp_path / "memory")
    with pytest.raises(StateError, match=r"another model.*conv"):
        GPM.load(tmp_path / "memory", nn.Linear(8, 3))
    wider = Net()
    wider.out = nn.Linear(12, 5)
    with pytest.raises(StateError, match=r"another model.*'out\.(weight|bias)'"):
        GPM.load(tmp_path / "memory", wider)
    wider.hidden = nn.Linear(40, 12)
    with pytest.raises(StateError, match=r"another model.*hidden has \[33\] inputs there and \[41\] here"):
        GPM.load(tmp_path / "memory", wider)

    other = GPM(nn.Sequential(nn.Linear(8, 4)))
    other.consolidate(data())
    before = frozen_copy(other.state_dict())
    for foreign in (memory.state_dict(), {}, {"version": 1}, {"version": 7}):
        with pytest.raises(StateError):
            other.load_state_dict(foreign)
        assert same(other.state_dict(), before)


def test_a_file_whose_patterns_mean_nothing_in_this_model_says_so(tmp_path: Path, net: Net) -> None:
    GPM(net, exclude=["out"]).save(tmp_path / "memory")
    with pytest.raises(StateError, match=r"does not fit this model.*'out'"):
        GPM.load(tmp_path / "memory", nn.Sequential(nn.Linear(8, 3)))


def test_a_state_that_holds_less_than_this_memory_is_refused(net: Net) -> None:
    loose = GPM(net, norm="free")
    loose.consolidate(data())
    with pytest.raises(StateError, match=r"norm\.weight.*settings"):
        GPM(net, norm="freeze").load_state_dict(loose.state_dict())


def test_a_threshold_function_must_be_given_again(net: Net, tmp_path: Path) -> None:
    def mine(layer: str, task: int) -> float:
        return 0.9

    GPM(net, threshold=mine).save(tmp_path / "memory")
    with pytest.raises(StateError, match="Pass it again"):
        GPM.load(tmp_path / "memory", net)
    GPM.load(tmp_path / "memory", net, threshold=mine).consolidate(data())


@pytest.mark.parametrize("threshold", [0.9, {"hidden": 0.5, "*": 0.9}, GPM.schedule(0.9, 0.01)], ids=str)
def test_other_thresholds_come_back_by_themselves(net: Net, tmp_path: Path, threshold: Any) -> None:
    before = GPM(net, threshold=threshold)
    before.save(tmp_path / "memory")
    after = GPM.load(tmp_path / "memory", net)
    assert after.settings == before.settings
    x = torch.randn(40, 8)
    assert after.consolidate(x) == before.consolidate(x)
    assert GPM.load(tmp_path / "memory", net, threshold=0.5).settings["threshold"] == 0.5


def test_saving_where_one_cannot_is_an_os_error(memory: GPM, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        memory.save(tmp_path / "no such folder" / "memory")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):  # noqa: PT011
        memory.save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert not list((tmp_path / "folder").iterdir())
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "folder").chmod(0o500)
        with pytest.raises(PermissionError):
            memory.save(tmp_path / "folder" / "memory")
        assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("stage", ["write", "fsync", "replace"])
def test_killed_while_saving_the_old_file_is_whole(
    memory: GPM, net: Net, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory"
    memory.save(path)
    old = path.read_bytes()
    memory.consolidate(data())

    def killed(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    if stage == "write":
        monkeypatch.setattr(storage, "to_bytes", lambda *args: _Unwritable())
    elif stage == "fsync":
        monkeypatch.setattr(storage.os, "fsync", killed)
    else:
        monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises((KeyboardInterrupt, TypeError)):
        memory.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory"]
    assert GPM.load(path, net).tasks == 1


class _Unwritable:
    """Not bytes: the write itself fails."""


def test_a_loaded_memory_outlives_its_file(memory: GPM, net: Net, tmp_path: Path) -> None:
    """The tensors must not be a map of the file: overwriting it would change, or kill, a running process."""
    path = tmp_path / "memory"
    memory.save(path)
    expected = frozen_copy(memory.state_dict())
    loaded = GPM.load(path, net)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert same(loaded.state_dict(), expected)


def test_a_state_dict_can_be_taken_over_and_does_not_follow_the_memory(memory: GPM, net: Net) -> None:
    state = memory.state_dict()
    kept = frozen_copy(state)
    train(net, memory.attach(adamw(net)), data())
    memory.consolidate(data())
    assert same(state, kept)
    memory.load_state_dict(state)
    assert same(memory.state_dict(), kept)


def test_a_full_layer_is_not_announced_again_after_loading(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    memory = GPM(model, threshold=1.0)
    with pytest.warns(UserWarning, match="Full"):
        memory.consolidate(torch.randn(20, 3))
    memory.save(tmp_path / "memory")
    loaded = GPM.load(tmp_path / "memory", model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.consolidate(torch.randn(20, 3))


def test_a_bare_pair_of_inputs_and_labels_is_not_taken_for_two_batches() -> None:
    memory = GPM(nn.Linear(4, 3))
    with pytest.raises(TypeError, match=r"\[\(x, y\)\]"):
        memory.consolidate((torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)))
    assert memory.tasks == 0
    assert memory.consolidate(torch.randn(8, 4).split(3)) == {"model": 4}  # split gives a tuple too: of batches
