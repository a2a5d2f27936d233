"""`verify` tells the truth: it raises when old outputs moved for no reason under watch, and says how far they drifted."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from attached import train_attached
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from remnant import GPM, LeakError

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Old outputs moved")


def seeded(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


OLD, NEW = seeded(0, 40, 3) @ seeded(1, 3, 12), seeded(2, 40, 3) @ seeded(3, 3, 12) + 1


class Net(nn.Module):
    """Two layers with attributes that code may change between tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 10), nn.Linear(10, 4)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(torch.tanh(self.body(x) * self.scale)))


def remembered(model: nn.Module, threshold: float = 0.999, **settings: object) -> GPM:
    """A memory of a model after one task, and some steps of the next."""
    memory = GPM(model, threshold=threshold, **settings)  # type: ignore[arg-type]
    train_attached(memory, lambda: (model(OLD) - 1).square().mean(), steps=5)
    memory.consolidate(OLD)
    train_attached(memory, lambda: (model(NEW) - 1).square().mean(), steps=10)
    return memory


class Squared(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).square()


def patch(model: Net) -> None:
    model.head.forward = lambda x: F.linear(x.flip(-1), model.head.weight, model.head.bias)  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[Net], object]] = {
    "patched forward": patch,
    "class": lambda m: setattr(m.head, "__class__", Squared),
    "attribute": lambda m: setattr(m, "scale", 1.1),
    "attribute that is NaN": lambda m: setattr(m, "scale", torch.nan),
    "hook": lambda m: m.body.register_forward_hook(lambda layer, args, output: output * 2),
    "pre-hook": lambda m: m.body.register_forward_pre_hook(lambda layer, args: (args[0].abs(),)),
    "function in another module": lambda m: setattr(m, "forward", lambda x: m.head(m.body(x).relu())),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_is_no_tensor_is_noticed_and_nothing_is_moved_by_looking(change: Callable[[Net], object]) -> None:
    model = Net()
    memory = remembered(model)
    memory.verify()
    change(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(LeakError, match=r"different outputs from then.*other than a tensor's value has changed"):
        memory.verify()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "change",
    [
        lambda m: prune.l1_unstructured(m.body, "weight", 0.5),
        lambda m: parametrizations.weight_norm(m.body),
        lambda m: parametrizations.orthogonal(m.body),
    ],
    ids=["mask", "weight norm", "orthogonal"],
)
def test_a_mask_or_parametrization_on_a_protected_layer_is_refused(change: Callable[[Net], object]) -> None:
    model = Net()
    memory = remembered(model)
    change(model)
    with pytest.raises(
        (LeakError, RuntimeError), match=r"'body'.*replaced|than a tensor's value has changed|moved inside.*'body'"
    ):
        memory.verify()


class Reads(nn.Module):
    """From a flag on, its head is also read by a function."""

    def __init__(self, use: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.out, self.use, self.on = nn.Linear(12, 30), nn.Linear(30, 4), use, False

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return torch.as_tensor(self.out(h) + (self.use(self, h) if self.on else 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_use_of_the_weights_that_comes_later_is_named(dtype: torch.dtype) -> None:
    model = Reads(lambda m, h: m.out.weight.sum() - m.start).to(dtype)
    memory = GPM(model, threshold=0.9)
    memory.consolidate(OLD.to(dtype))
    model.start, model.on = float(model.out.weight.detach().double().sum()), True  # 0 now, and moves with the weight
    train_attached(memory, lambda: (model(NEW.to(dtype)) - 1).square().mean(), steps=10)
    with pytest.raises(LeakError, match=r"used in ways their rule does not cover: 'out' \("):
        memory.verify()


@pytest.mark.parametrize("settings", [{}, {"exclude": ["head"]}, {"bias": "free"}, {"threshold": 0.6}], ids=str)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_alone_raises_no_alarm(settings: dict, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    model = Net()
    memory = remembered(model, **settings)
    for task in range(2):
        memory.verify()
        memory.consolidate(NEW + task)
        train_attached(memory, lambda: (model(OLD + 3) - 1).square().mean(), optimizer=optimizer)
    assert [x.name for x in memory.verify(OLD).tasks] == ["task 0", "task 1", "task 2", "batches"]


def test_norms_that_are_free_and_modes_raise_no_alarm() -> None:
    model = nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Dropout(0.3), nn.Linear(10, 4))
    memory = remembered(model.train(), norm="free")
    memory.verify()
    model.eval()
    memory.verify()


def test_outputs_that_drift_are_shown_per_task_and_warned_of_in_plain_words() -> None:
    model = Net()
    memory = GPM(model, threshold=0.5)
    memory.consolidate(OLD)
    train_attached(memory, lambda: (model(NEW) - 5).square().mean(), steps=60)
    with torch.no_grad():
        expected = model(OLD)
    with pytest.warns(UserWarning, match=r"Old outputs moved by \d+% for task 0.*1−ε.*'(body|head)'.*head"):
        result = memory.verify({0: [OLD[:20], OLD[20:]]})
    kept, given = result.tasks
    assert (kept.name, given.name) == ("task 0", "task 0, batches")
    with memory._verifier._anchored():
        start = model(OLD)
    assert given.drift == pytest.approx(float((expected - start).norm() / start.norm()), rel=1e-4)
    assert "task 0, batches" in str(result)
    with pytest.raises(ValueError, match="no batches"):
        memory.verify({0: []})


def test_what_does_not_drift_warns_of_nothing() -> None:
    memory = remembered(Net(), threshold=1.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Old outputs")
        result = memory.verify([OLD])
    assert all(x.drift is not None and x.drift < 1e-4 for x in result.tasks)


def test_of_a_head_that_grows_the_old_outputs_are_compared() -> None:
    class Grows(Net):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.ModuleList()

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.body(x))
            return torch.cat([self.head(h), *(head(h) for head in self.more)], dim=-1)

    model = Grows()
    memory = GPM(model, threshold=1.0, exclude=["more"])
    memory.consolidate(OLD)
    model.more.append(nn.Linear(10, 2))
    assert memory.verify().tasks[0].drift == pytest.approx(0, abs=1e-6)


def test_a_head_that_was_replaced_is_not_compared() -> None:
    model = Net()
    memory = GPM(model, threshold=1.0, exclude=["head"])
    memory.consolidate(OLD)
    model.head = nn.Linear(10, 2)
    assert memory.verify().tasks[0].drift is None
    assert "–" in str(memory.verify())


def test_examples_are_kept_in_memory_only_and_of_a_bounded_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.audit.verification.KEPT", 2)
    model = Net()
    memory = GPM(model, threshold=0.5)
    for _ in range(4):
        memory.consolidate(OLD, forward=lambda m, x: m(x))
    assert [x.name for x in memory.verify().tasks] == ["task 2", "task 3"]
    assert not any("witness" in name for name in memory.state_dict())
    twin = pickle.loads(pickle.dumps(memory._verifier.__getstate__()["witnesses"]))
    assert twin == []
    memory.load_state_dict(memory.state_dict())
    assert not memory.verify().tasks


def test_an_exception_while_looking_leaves_the_weights() -> None:
    model = Net()
    memory = remembered(model)
    before = copy.deepcopy(model.state_dict())

    def fails(*_: object) -> None:
        raise KeyError("gone")

    hook = model.head.register_forward_hook(fails)
    with pytest.raises(KeyError):
        memory.verify(OLD)
    hook.remove()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    memory.verify()


class Heads(nn.Module):
    """An attribute selects the task's head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads, self.task = nn.Linear(12, 10), nn.ModuleList([nn.Linear(10, 3) for _ in range(2)]), 0

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.heads[self.task](torch.tanh(self.body(x))))


def test_another_tasks_head_is_no_leak_but_said() -> None:
    model = Heads()
    memory = GPM(model, threshold=1.0)
    memory.consolidate(OLD)
    model.task = 1
    train_attached(memory, lambda: (model(NEW) - 1).square().mean(), steps=5)
    with pytest.warns(UserWarning, match=r"for task 0 were not compared.*another task's head.*forward="):
        assert memory.verify().tasks[0].drift is None
    model.task = 0
    assert memory.verify().tasks[0].drift < 1e-5


def test_a_forward_that_selects_the_head_is_the_remedy() -> None:
    model = Heads()
    memory = GPM(model, threshold=1.0)

    def first(m: nn.Module, x: Tensor) -> Tensor:
        m.task = 0
        return torch.as_tensor(m(x))

    memory.consolidate(OLD, forward=first)
    model.task = 1
    train_attached(memory, lambda: (model(NEW) - 1).square().mean(), steps=5)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not compared")
        assert memory.verify().tasks[0].drift < 1e-5
    model.heads[0].forward = lambda x: model.heads[1](x)  # type: ignore[method-assign]
    with pytest.raises(LeakError, match="other than a tensor's value has changed"):
        memory.verify()
