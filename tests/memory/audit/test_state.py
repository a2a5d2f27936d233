"""Buffers that old outputs depend on are kept, or their change is reported; all others are ignored."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_net import train
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from remnant import GPM, LeakError, StateError
from remnant.memory.audit.state import checksum

_SEEDED = torch.Generator().manual_seed(0)
OLD, NEW = (torch.randn(40, 4, generator=_SEEDED) @ torch.randn(4, 6, generator=_SEEDED) + shift for shift in (0, 3))


class Average(nn.Module):
    """Subtracts a running mean, which training moves."""

    def __init__(self, *, always: bool = False, dropout: bool = False) -> None:
        super().__init__()
        self.register_buffer("m", torch.zeros(8))
        self.always = always
        self.inner = nn.Dropout(0.5) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.training or self.always:
            self.m.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return torch.as_tensor(self.inner(x - self.m))


class MeanNorm(Average):
    """The same with something to learn: a norm of the user's own."""

    def __init__(self, *, always: bool = False, dropout: bool = False) -> None:
        super().__init__(always=always, dropout=dropout)
        self.g = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.g


class Counts(nn.Module):
    """Has buffers that do not affect its result: a count, a cache, a constant, a history."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("seen", torch.tensor(0.0))
        self.register_buffer("cache", torch.zeros(8), persistent=False)
        self.register_buffer("history", torch.zeros(8))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        self.history.mul_(0.9).add_(x.mean(0).detach())
        self.cache.copy_(x[0].detach())
        return torch.as_tensor(self.drop(x * self.scale + 0 * self.cache))


def around(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), *parts, nn.Tanh(), nn.Linear(8, 3))


def two_tasks(model: nn.Module, **settings: object) -> tuple[GPM, float]:
    """Learns both tasks; returns the memory, and how far the outputs of the first one moved."""
    memory = GPM(model, threshold=0.99999, **settings)  # type: ignore[arg-type]
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=0.01))
    model.train()
    train(model, optimizer, OLD, steps=20)
    memory.consolidate(OLD)
    with torch.no_grad():
        before = model.eval()(OLD)
    train(model.train(), optimizer, NEW, steps=20)
    with torch.no_grad():
        return memory, float((model.eval()(OLD) - before).norm() / before.norm())


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: around(MeanNorm()), {}),
        (lambda: around(Average()), {"unsupported": "freeze"}),
        (
            lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3)),
            {"unsupported": "freeze"},
        ),
        (lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3)), {"unsupported": "freeze"}),
    ],
    ids=["own norm", "average", "spectral norm", "spectral norm of old"],
)
@pytest.mark.filterwarnings("ignore:These layers are full", "ignore:`torch.nn.utils.spectral_norm` is deprecated")
def test_held_modules_leave_their_buffers_and_old_outputs_alone(make: Callable[[], nn.Module], settings: dict) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*buffers")
        memory, moved = two_tasks(make(), **settings)
    assert moved < 1e-2  # the share 1 − ε of the energy, no more
    assert any(check.buffer for check in memory.verify(OLD).layers)


@pytest.mark.filterwarnings("ignore:These layers are full")
def test_an_unprotected_buffer_is_reported_after_the_first_task_and_by_verify() -> None:
    with pytest.warns(
        UserWarning, match=r"parameters that training changes.*: '1\.m'\. .*unsupported=\"freeze\".*exclude"
    ):
        memory, moved = two_tasks(around(Average()))
    assert moved > 0.1
    with pytest.raises(
        LeakError, match=r"^Buffers or fixed parameters that the forward pass reads.*'1\.m'.*No attached optimizer"
    ) as error:
        memory.verify()
    assert "Protected weights moved" not in str(error.value)
    with pytest.warns(UserWarning, match=r"^Buffers or fixed parameters .* have changed.*'1\.m'") as caught:
        memory.consolidate(NEW)
    assert not any("optimizer that trains" in str(warning.message) for warning in caught)
    memory.verify()  # the leak counts from the last consolidate


class Quantised(nn.Module):
    """Adds the nearest row of a codebook, which the module, or an EMA of the caller's, moves. Each kind of state once."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        start = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
        self.kind = kind
        self.code = nn.Parameter(start, requires_grad=False)
        self.register_buffer("order", torch.arange(8))
        self.register_buffer("mask", torch.arange(8) < 3)
        self.register_buffer("shift", torch.zeros(8), persistent=False)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            if self.kind == "code":
                self.code.data.mul_(0.9).add_(0.1 * x.detach().mean(0))
            elif self.kind == "order":
                self.order.copy_(self.order.roll(1))
            elif self.kind == "mask":
                self.mask.copy_(self.mask.roll(1))
            elif self.kind == "shift":
                self.shift.mul_(0.9).add_(0.1 * x.detach().mean(0))
        nearest = self.code[torch.cdist(x, self.code).argmin(-1)]
        return (x + nearest)[:, self.order] * self.mask + self.shift


@pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Old outputs moved")
@pytest.mark.parametrize("kind", ["code", "order", "mask", "shift"])
def test_every_kind_of_state_that_training_moves_is_reported(kind: str) -> None:
    with pytest.warns(UserWarning, match=rf"fixed parameters that training changes.*: '1\.{kind}'\."):
        memory, _ = two_tasks(around(Quantised(kind)))
    with pytest.raises(LeakError, match=rf"have changed since the task began.*: '1\.{kind}'\."):
        memory.verify()
    memory, moved = two_tasks(around(Quantised(kind)), unsupported="freeze")
    memory.verify()
    assert moved < 1e-2


@pytest.mark.filterwarnings("ignore:These layers are full")
def test_counters_and_frozen_parameters_that_stay_raise_no_alarm() -> None:
    model = around(Quantised("nothing"), nn.BatchNorm1d(8))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(b|B)uffers")
        memory, moved = two_tasks(model)
        memory.verify()
        memory.consolidate(NEW)
    assert int(model[1].seen) > 0
    assert moved < 1e-2


@pytest.mark.filterwarnings("ignore:These layers are full")
def test_a_teacher_that_the_caller_averages_is_reported_even_if_it_moves_only_later() -> None:
    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = nn.Linear(6, 3), nn.Linear(6, 3).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.student(x) + self.teacher(x))

    model = Distilled()
    memory = GPM(model, threshold=0.9)
    memory.consolidate(OLD)
    memory.verify()
    with torch.no_grad():
        model.teacher.weight.lerp_(model.student.weight, 0.1)
    with pytest.raises(LeakError, match=r"have changed since the task began.*'teacher\.weight'"):
        memory.verify()


def test_a_checksum_sees_any_exchange_and_the_last_bit() -> None:
    x = torch.randn(7, 5)
    for change in (lambda t: t.flip(0), lambda t: t.flip(1), lambda t: t.roll(1), lambda t: t.mT.reshape(7, 5)):
        assert checksum(x)[1] != checksum(change(x).contiguous())[1]
    y = x.clone()
    y[3, 3] = torch.nextafter(y[3, 3], torch.tensor(9.0))
    assert checksum(x)[1] != checksum(y)[1]
    assert checksum(x)[1] == checksum(x.mT.contiguous().mT)[1], "the memory layout does not matter"
    for other in (
        torch.tensor(True),
        torch.zeros(0, 3),
        torch.zeros(2, dtype=torch.complex64),
        torch.tensor(1, dtype=torch.int8),
    ):
        assert checksum(other)[1] == checksum(other.clone())[1]


@pytest.mark.filterwarnings("ignore:These layers are full")
def test_a_norm_that_ignores_eval_mode_is_reported_apart_from_weights() -> None:
    memory, _ = two_tasks(around(MeanNorm(always=True)))
    with pytest.raises(LeakError, match=r"^Buffers.*'1\.m'.*eval mode"):
        memory.verify()
    with torch.no_grad():
        memory._model[0].weight.zero_()
    with pytest.raises(LeakError, match=r"Protected weights moved.*'0'.*attached.* Buffers .*'1\.m'"):
        memory.verify()


@pytest.mark.filterwarnings("ignore:These layers are full")
@pytest.mark.parametrize(
    ("part", "settings"),
    [
        (Counts, {}),
        (Counts, {"unsupported": "freeze"}),
        (Average, {"unsupported": "free"}),
        (Average, {"exclude": ["1"]}),
        (Average, {"exclude": ["1.m"]}),
        (MeanNorm, {"norm": "free"}),
        (MeanNorm, {"exclude": ["1"]}),
    ],
    ids=str,
)
def test_buffers_that_do_not_matter_or_were_let_go_raise_no_alarm(part: type[nn.Module], settings: dict) -> None:
    model = around(part())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(b|B)uffers")
        memory, _ = two_tasks(model, **settings)
        memory.verify()
        memory.consolidate(NEW)
    assert model.train()[1].training, "nothing holds it"


def test_what_is_inside_a_held_module_still_follows_the_model() -> None:
    model = around(MeanNorm(dropout=True))
    memory = GPM(model, threshold=0.5)
    memory.consolidate(OLD)
    for mode in (False, True, False):
        model.train(mode)
        assert not model[1].training
        assert model[1].inner.training == mode
    memory.detach()
    assert model.train()[1].training


@pytest.mark.filterwarnings("ignore:These layers are full")
def test_a_saved_memory_knows_what_it_holds(tmp_path: Path) -> None:
    model = around(Average())
    memory, _ = two_tasks(model, unsupported="freeze")
    memory.save(tmp_path / "memory")
    twin = copy.deepcopy(model)
    del twin[1].__dict__["train"]
    loaded = GPM.load(tmp_path / "memory", twin)
    assert not twin.train()[1].training
    loaded.verify()
    twin[1].m += 1
    with pytest.raises(LeakError, match=r"'1\.m'"):
        loaded.verify()
    twin[1].m = torch.zeros(5)
    with pytest.raises(StateError, match=r"buffer '1\.m': \[8\] in the state, \[5\] here"):
        GPM.load(tmp_path / "memory", twin)


def test_a_state_without_the_buffer_of_a_module_that_is_not_a_norm_is_taken() -> None:
    memory = GPM(around(Average()), threshold=0.5)
    memory.consolidate(OLD)
    state = memory.state_dict()
    del state["buffers"]["1.m"]
    memory.load_state_dict(state)
    memory.verify()
