"""How long a task trains, at which rate, and with which weights it ends; which batches an evaluation sees."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from remnant.data import Split, Task
from remnant.experiments.settings import resolve
from remnant.memory import codec
from remnant.methods import Finetune, Method
from remnant.models import build
from remnant.training import (
    Blocking,
    EpochDone,
    Schedule,
    Trainer,
    TrainingState,
    evaluate_method,
    run_to_completion,
)

CPU = torch.device("cpu")


class Scripted(Method):
    """A method with given validation losses. Its weights count the steps, which identifies the model."""

    name = "scripted"

    def __init__(self, losses: list[float]) -> None:
        super().__init__(build("mlp", input_shape=(2,), classes=2, seed=0, hidden=(3,)), lr=1.0)
        self.losses, self.rates, self.modes = losses, list[float](), list[bool]()
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.zero_()

    @property
    def model(self) -> int:
        (count,) = {float(value) for p in self.network.parameters() for value in p.detach().flatten()}
        return int(count)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.rates.append(float(self.lr))
        self.modes.append(self.network.training)
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.add_(1)
        return torch.tensor(0.5)

    def logits(self, x: Tensor, task: int) -> Tensor:
        """Two scores whose cross-entropy with label 0 is the epoch's loss."""
        loss = torch.tensor(self.losses[self.model - 1], dtype=torch.float64)
        return torch.stack([-torch.log(torch.expm1(loss)), torch.zeros_like(loss)]).expand(len(x), 2)


def task(train: int = 4, valid: int = 3) -> Task:
    def split(size: int) -> Split:
        return Split.of(torch.zeros(size, 2), torch.zeros(size, dtype=torch.int64))

    return Task("a task", 2, split(train), split(valid), split(1))


def fit(
    method: Method,
    schedule: Schedule,
    given_task: Task,
    state: TrainingState | None = None,
    stop_after: int | None = None,
) -> list[EpochDone]:
    """Trains all epochs, or stops after `stop_after` of them as if killed."""
    done: list[EpochDone] = []
    work = Trainer(schedule).fit(method, 3, given_task, state or TrainingState(), lambda epoch, _: done.append(epoch))
    for blocking in work:
        assert blocking is None
        if stop_after is not None and len(done) == stop_after:
            work.close()
    return done


def by_hand(losses: list[float], s: Schedule) -> tuple[list[float], int]:
    """The published loop: the rates of its epochs, and the epoch whose model it ends with (0: the last)."""
    assert s.patience
    lr, best, patience, model, rates = s.lr, math.inf, s.patience, 0, []
    for epoch in range(1, s.epochs + 1):
        rates.append(lr)
        if losses[epoch - 1] < best:
            best, model, patience = losses[epoch - 1], epoch, s.patience
            continue
        patience -= 1
        if patience <= 0:
            lr /= s.factor
            if lr < s.lr_min:
                break
            patience = s.patience
    return rates, model or len(rates)


LOSSES = st.lists(st.sampled_from([0.2, 0.4, 0.6, 0.8, 1.0, math.nan]), min_size=40, max_size=40)


@given(
    LOSSES,
    st.integers(1, 4),
    st.sampled_from([1.5, 2.0, 3.0]),
    st.sampled_from([0.4, 0.1, 0.01]),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_early_stopping_equals_the_published_loop_also_when_killed_and_resumed(
    losses: list[float], patience: int, factor: float, lr_min: float, epochs: int, killed: int
) -> None:
    schedule = Schedule(1.0, epochs, batch=4, patience=patience, factor=factor, lr_min=lr_min)
    rates, model = by_hand(losses, schedule)
    method = Scripted(losses)
    done = fit(method, schedule, task())
    assert [epoch.lr for epoch in done] == pytest.approx(rates)
    assert method.rates == pytest.approx(rates)
    assert method.model == model

    # The same, killed after some epoch and resumed from the saved state.
    method, state = Scripted(losses), TrainingState()
    before = fit(method, schedule, task(), state, stop_after=killed)
    saved = dict(vars(state))
    again = Scripted(losses)
    again.load_state_dict(method.state_dict())
    after = fit(again, schedule, task(), TrainingState.from_state(saved, CPU))
    assert [epoch.lr for epoch in before + after] == pytest.approx(rates)
    assert [epoch.epoch for epoch in before + after] == list(range(1, len(rates) + 1))
    assert again.model == model


def test_each_epoch_continues_from_the_last_model_and_the_best_is_restored_at_the_end() -> None:
    losses = [0.5, 0.3, 0.9, 0.9, 0.9, 0.2, 0.9, 0.9, 0.9, 0.9]
    schedule = Schedule(1.0, 10, batch=4, patience=2, factor=2.0, lr_min=0.01)
    seen = []
    method = Scripted(losses)
    for _ in Trainer(schedule).fit(method, 0, task(), TrainingState(), lambda *_: seen.append(method.model)):
        pass
    assert seen == list(range(1, 11))
    assert method.model == 6


@pytest.mark.parametrize(
    ("benchmark", "expected"),
    [
        ("split-cifar100", (0.01, 64, 200, 1e-5, 6, 2)),
        ("cifar100-superclass", (0.01, 64, 50, 1e-5, 6, 2)),
        ("five-datasets", (0.1, 64, 100, 1e-3, 5, 3)),
        ("pmnist", (0.01, 10, 5, 0.0, None, 2)),
    ],
)
def test_the_recipes_have_the_published_constants(benchmark: str, expected: tuple[Any, ...]) -> None:
    settings = resolve(benchmark, "gpm")
    s = Schedule(lr=settings.options["lr"], **settings.training)
    assert (s.lr, s.batch, s.epochs, s.lr_min, s.patience, s.factor) == expected


def test_a_loss_that_never_falls_ends_after_patience_times_the_halvings() -> None:
    """0.01 / 2ⁿ is under 1e-5 at n = 10: the first epoch is the best, then ten times six."""
    schedule = Schedule(0.01, 200, batch=4, patience=6, factor=2, lr_min=1e-5)
    method = Scripted([0.5] * 200)
    assert len(fit(method, schedule, task())) == 1 + 6 * 10
    assert method.model == 1


def test_fixed_epochs_keep_the_rate_and_the_last_model() -> None:
    method = Scripted([0.1, *[0.9] * 14])
    done = fit(method, Schedule(0.25, 5, batch=3), task(train=8))
    assert method.model == 15  # three batches an epoch, the last one short
    assert method.rates == [0.25] * 15
    assert all(method.modes)
    assert [(epoch.task, epoch.epoch, epoch.epochs, epoch.steps) for epoch in done] == [
        (3, n, 5, 3) for n in range(1, 6)
    ]
    assert all(epoch.loss == 0.5 and epoch.seconds > 0 for epoch in done)


def test_an_annealed_rate_falls_by_half_a_cosine_in_every_task_and_after_a_resume() -> None:
    method, schedule, state = Scripted([1.0] * 8), Schedule(lr=0.8, epochs=4, batch=4), TrainingState()
    method.anneal = True
    expected = [0.8 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4)]
    done = fit(method, schedule, task(valid=0), state, stop_after=2) + fit(method, schedule, task(valid=0), state)
    assert [epoch.lr for epoch in done] == expected
    assert method.rates == pytest.approx(expected)
    assert [epoch.lr for epoch in fit(method, schedule, task(valid=0))] == expected


def test_a_last_batch_of_one_example_is_left_out() -> None:
    """A batch of one has no statistics to normalise by, so seven rows in threes are two batches, not three."""
    method = Scripted([0.1] * 10)
    done = fit(method, Schedule(0.25, 5, batch=3), task(train=7))
    assert method.model == 10
    assert [(epoch.steps, epoch.loss) for epoch in done] == [(2, 0.5)] * 5
    network = build("alexnet", input_shape=(3, 32, 32), classes=2, seed=0, width=1)
    rows = Split.of(torch.randn(5, 3, 32, 32), torch.tensor([0, 1, 0, 1, 0]))
    assert len(fit(Finetune(network, lr=0.1), Schedule(0.1, 1, batch=4), Task("five", 2, rows, rows, rows))) == 1
    alone = Scripted([0.1])
    assert [epoch.steps for epoch in fit(alone, Schedule(0.25, 1, batch=3), task(train=1))] == [1]


def test_the_validation_loss_and_accuracy_are_those_of_the_method() -> None:
    done = fit(Scripted([0.3, 0.9]), Schedule(0.25, 2, batch=4), task())
    assert [epoch.valid_loss for epoch in done] == pytest.approx([0.3, 0.9])
    assert [epoch.valid_accuracy for epoch in done] == [1.0, 0.0]  # at ln 2 the scores are equal


@pytest.mark.parametrize("patience", [None, 1])
def test_without_a_validation_set_there_is_nothing_to_stop_by(patience: int | None) -> None:
    method = Scripted([])
    schedule = Schedule(0.25, 6, batch=4, patience=patience, factor=2, lr_min=0.2)
    done = fit(method, schedule, task(valid=0))
    assert [epoch.lr for epoch in done] == [0.25] * 6
    assert all(math.isnan(epoch.valid_loss) and math.isnan(epoch.valid_accuracy) for epoch in done)
    assert method.model == 6


def test_a_training_state_comes_back_from_a_file(tmp_path: Path) -> None:
    method, state = Scripted([0.5, 0.4, 0.7, 0.8]), TrainingState()
    fit(method, Schedule(1.0, 4, batch=4, patience=2, factor=3, lr_min=0.5), task(), state)
    (tmp_path / "state").write_bytes(b"".join(codec.pack(dict(vars(state)))))
    back = TrainingState.from_state(codec.read(tmp_path / "state"), CPU)
    assert (back.epoch, back.over, back.lr) == (4, True, state.lr)
    assert (back.best_loss, back.patience) == (pytest.approx(0.4), 2)
    assert back.best.keys() == state.best.keys()
    assert all(torch.equal(back.best[name], state.best[name]) for name in back.best)
    fresh = TrainingState.from_state(vars(TrainingState()), CPU)
    assert fresh == TrainingState()


def test_the_best_model_is_a_copy() -> None:
    """Later steps change the weights in place."""
    method, state = Scripted([0.1, 0.9, 0.9]), TrainingState()
    fit(method, Schedule(1.0, 3, batch=4, patience=5, factor=2, lr_min=0.1), task(), state)
    with torch.no_grad():
        for parameter in method.network.parameters():
            parameter.zero_()
    assert all(bool((tensor == 1).all()) for tensor in state.best.values())


# --- evaluation -------------------------------------------------------------------------------------------------------


class Listening(Finetune):
    """Notes the batches that it is evaluated on."""

    def logits(self, x: Tensor, task: int) -> Tensor:
        assert not self.network.training
        self.seen = [*getattr(self, "seen", []), x.detach().clone()]
        return super().logits(x, task)


def listening(norm: str) -> Listening:
    return Listening(build("alexnet", input_shape=(1, 19, 19), classes=[3, 3], seed=0, width=2, norm=norm), lr=0.1)


@pytest.fixture
def sorted_by_class() -> Split:
    return Split.of(torch.randn(50, 1, 19, 19), torch.arange(50) // 17)


def evaluated(method: Method, splits: dict[int, Split]) -> list[float]:
    return list(run_to_completion(evaluate_method(method, splits, 16)).accuracy)


def test_an_evaluation_by_the_batch_is_shuffled_the_same_way_each_time(sorted_by_class: Split) -> None:
    method = listening("batch")
    random = torch.get_rng_state()
    first = evaluated(method, {0: sorted_by_class, 1: sorted_by_class})
    batches, method.seen = method.seen, []
    torch.manual_seed(99)
    again = evaluated(method, {0: sorted_by_class, 1: sorted_by_class})
    assert first == again
    assert all(torch.equal(a, b) for a, b in zip(batches, method.seen, strict=True))
    assert not torch.equal(torch.cat(batches[:4]), sorted_by_class.x)
    same_rows = torch.cat(batches[:4]).flatten(1).sort(0).values
    assert torch.equal(same_rows, sorted_by_class.x.flatten(1).sort(0).values)
    assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(99).get_state())
    assert not torch.equal(torch.get_rng_state(), random)


def test_other_runs_may_continue_after_each_split_of_an_evaluation(sorted_by_class: Split) -> None:
    method = listening("running")
    seen = [len(method.seen) for _ in evaluate_method(method, {0: sorted_by_class, 1: sorted_by_class}, 25)]
    assert seen == [2, 4]


def test_a_function_returned_by_on_epoch_is_called_before_the_next_epoch() -> None:
    method, done = Scripted([1.0, 0.9, 0.8]), list[int]()

    def on_epoch(epoch: EpochDone, state: TrainingState) -> Blocking | None:
        return (lambda: done.append(method.model)) if epoch.epoch != 2 else None

    schedule = Schedule(lr=0.1, epochs=3, batch=4)
    run_to_completion(Trainer(schedule).fit(method, 0, task(), TrainingState(), on_epoch))
    assert done == [1, 3]


def test_an_evaluation_by_running_statistics_keeps_the_order(sorted_by_class: Split) -> None:
    method = listening("running")
    evaluated(method, {0: sorted_by_class})
    assert torch.equal(torch.cat(method.seen), sorted_by_class.x)
