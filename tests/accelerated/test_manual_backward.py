"""Steps without autograd end with the weights of `EagerSteps`, for the networks and methods they support."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remnant.accelerated import FastestTrainer
from remnant.accelerated.manual_backward import ManualBackwardSteps, is_linear_chain
from remnant.data import Split
from remnant.methods import METHODS, Finetune, GradientProjection, Method, Recall
from remnant.models import MLP
from remnant.training import EagerSteps, Schedule, run_to_completion

OPTIONS: dict[str, dict[str, Any]] = {"gpm": {"threshold": {"value": 0.9}, "samples": 50}, "ewc": {"strength": 10.0}}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-13}}


def learner(method: str, classes: Any = 10, dtype: torch.dtype = torch.float32, **shape: Any) -> Method:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = MLP((1, 12, 13), classes, **shape)
    return METHODS[method](network.to(dtype), lr=0.05, **OPTIONS.get(method, {}))


def split(rows: int = 607, dtype: torch.dtype = torch.float32) -> Split:
    torch.manual_seed(0)
    return Split.of(torch.randn(rows, 1, 12, 13, dtype=dtype), torch.randint(0, 10, (rows,)))


def after(kind: Any, method: Method, data: Split, batch: int, epochs: int, tasks: int) -> tuple[list[Tensor], float]:
    """All weights and the last epoch's loss, after training the last of `tasks` tasks."""
    torch.manual_seed(3)
    for task in range(tasks - 1):
        method.start(task)
        method.finish(task, data)
    method.start(tasks - 1)
    steps = kind(method, data, batch)
    for _ in range(epochs):
        for start in steps.epoch():
            assert start is None
    return [p.detach().clone() for p in method.network.parameters()], steps.loss.item()


def assert_same_steps(
    make: Any, data: Split, batch: int, epochs: int, tasks: int, dtype: torch.dtype = torch.float32
) -> None:
    eager, loss = after(EagerSteps, make(), data, batch, epochs, tasks)
    ours, our_loss = after(ManualBackwardSteps, make(), data, batch, epochs, tasks)
    assert our_loss == pytest.approx(loss, rel=1e-4)
    for a, b in zip(eager, ours, strict=True):
        torch.testing.assert_close(a, b, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("tasks", [1, 2], ids=["first task", "second task"])
@pytest.mark.parametrize("classes", [10, [10, 12]], ids=["one head", "two heads"])
@pytest.mark.parametrize("method", ["gpm", "finetune", "single-task"])
def test_a_hundred_steps_equal_eager_ones(method: str, classes: Any, tasks: int, dtype: torch.dtype) -> None:
    """Two epochs of 607 rows in batches of ten: sixty whole batches and one of seven rows."""
    assert_same_steps(lambda: learner(method, classes, dtype), split(dtype=dtype), 10, 2, tasks, dtype)


class Phases(Recall):
    """Trains a second epoch with the truncated network, as a run with `retrain=1` does."""

    epochs = 0

    def order(self, train: Split, batch: int) -> Tensor:
        self.on_epoch_start(self.epochs, 2, 61)
        self.epochs += 1
        return super().order(train, batch)


@pytest.mark.parametrize("own_rank", [0, 3], ids=["shared weights", "own parts"])
@pytest.mark.parametrize("tasks", [1, 2], ids=["first task", "second task"])
@pytest.mark.parametrize("classes", [10, [10, 12]], ids=["one head", "two heads"])
def test_recall_takes_the_same_steps_before_and_after_it_truncates(own_rank: int, tasks: int, classes: Any) -> None:
    made: list[Recall] = []

    def make() -> Method:
        network = learner("finetune", classes, torch.float64).network
        made.append(Phases(network, lr=0.05, threshold={"value": 0.9}, samples=50, own_rank=own_rank, anneal=False))
        assert is_linear_chain(made[-1])
        return made[-1]

    assert_same_steps(make, split(dtype=torch.float64), 10, 2, tasks, torch.float64)
    for eager, ours in zip(*([*method.u.values(), *method.v.values()] for method in made), strict=True):
        torch.testing.assert_close(eager, ours, **TOLERANCE[torch.float64])
    assert all(method.rest for method in made)
    trained = [bool(part.any()) for name, part in made[0].u.items() if name.startswith(f"{tasks - 1} ")]
    assert trained == [True] * (len(made[0].layers) if own_rank else 0)


def test_labels_may_be_smoothed() -> None:
    def make() -> Method:
        return GradientProjection(learner("gpm").network, lr=0.05, label_smoothing=0.2, **OPTIONS["gpm"])

    assert is_linear_chain(make())
    assert_same_steps(make, split(), 10, 2, 2)


def test_joint_training_with_one_head_takes_the_same_steps() -> None:
    assert_same_steps(lambda: learner("multitask"), split(), 10, 2, 1)


@pytest.mark.parametrize("hidden", [(), (20,), (30, 20, 10)])
def test_any_number_of_layers(hidden: tuple[int, ...]) -> None:
    assert_same_steps(lambda: learner("gpm", hidden=hidden), split(200), 16, 2, 2)


@pytest.mark.parametrize(("rows", "batch"), [(7, 10), (10, 10), (11, 10), (1, 10), (23, 1), (1030, 2)])
def test_any_number_of_rows(rows: int, batch: int) -> None:
    """Fewer rows than a batch, a last batch of one row, batches of one, more rows than are fetched at once."""
    assert_same_steps(lambda: learner("gpm"), split(rows), batch, 1, 2)


def test_the_rate_may_change_between_epochs() -> None:
    method = learner("finetune")
    steps = ManualBackwardSteps(method, split(), 10)
    before = [p.detach().clone() for p in method.network.parameters()]
    method.lr.zero_()
    list(steps.epoch())
    assert all(torch.equal(old, p) for old, p in zip(before, method.network.parameters(), strict=True))
    method.lr.fill_(0.05)
    list(steps.epoch())
    assert not any(torch.equal(old, p) for old, p in zip(before, method.network.parameters(), strict=True))


def test_the_memory_stays_unchanged() -> None:
    method, data = learner("gpm"), split()
    assert isinstance(method, GradientProjection)
    after(ManualBackwardSteps, method, data, 10, 2, 2)
    assert method.memory.verify().worst < 1e-5


class Clipped(GradientProjection):
    """Its steps differ from those that GradientProjection declares a fast form for."""

    def apply_gradients(self, gradients: Any) -> None:
        super().apply_gradients({parameter: gradient.clamp(-1, 1) for parameter, gradient in gradients.items()})


class Smoothed(Finetune):
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(x, self.task), y, label_smoothing=0.1)


class Undeclared(GradientProjection):
    fast_form = None


class Leaky(MLP):
    def features(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(super().features(x))


def test_it_applies_to_plain_networks_and_methods_that_only_project() -> None:
    assert all(is_linear_chain(learner(name)) for name in ("gpm", "finetune", "single-task", "multitask"))
    assert not is_linear_chain(learner("multitask", [10, 12]))
    assert not is_linear_chain(learner("ewc"))
    assert not is_linear_chain(learner("gpm", bias=True))
    assert not is_linear_chain(learner("finetune", hidden=(100, 2000)))
    network = learner("gpm").network
    for kind in (Clipped, Undeclared):
        assert not is_linear_chain(kind(network, lr=0.1, **OPTIONS["gpm"]))
    assert not is_linear_chain(Smoothed(network, lr=0.1))
    assert not is_linear_chain(Finetune(Leaky((1, 12, 13), 10), lr=0.1))
    other_optimizer = learner("finetune")
    other_optimizer.use_optimizer("sgd", momentum=0.9)
    assert not is_linear_chain(other_optimizer)
    frozen = learner("finetune")
    next(frozen.network.parameters()).requires_grad_(False)
    assert not is_linear_chain(frozen)


@pytest.mark.parametrize(("steps", "kind"), [("auto", ManualBackwardSteps), ("eager", EagerSteps)])
def test_the_trainer_chooses_them_where_it_may(steps: str, kind: type) -> None:
    trainer = FastestTrainer(Schedule(0.05, 1, batch=10), steps)
    assert type(run_to_completion(trainer.steps(learner("gpm"), split()))) is kind
    assert type(run_to_completion(trainer.steps(learner("ewc"), split()))) is EagerSteps
