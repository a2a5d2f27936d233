"""Validation after every epoch: recorded, it says what a plain evaluation says, of the weights there are now."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from replaying import POOL, Graph
from torch import Tensor

from remnant.data import Split, Stream, Task
from remnant.methods import METHODS, Finetune, Method
from remnant.models import build
from remnant.training import EpochDone, RandomState, Schedule, Trainer, TrainingState, at_once
from remnant.training.evaluation import Validation
from remnant.training.steps import CapturedSteps, EagerSteps
from small_options import OPTIONS

SHAPE = (3, 19, 19)
failed: list[Graph] = []  # captures that were tidied up after


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Those made meanwhile, on a CPU."""
    made: list[Graph] = []

    def make() -> Graph:
        made.append(Graph())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", make)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr("remnant.accelerated.recording._tidy_up", lambda graph, pool: failed.append(graph))
    failed.clear()
    return made


def task(rows: int = 90, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Task:
    """Sorted by class, with a set to validate on that leaves one example over a whole number of batches."""
    generator = torch.Generator().manual_seed(3)

    def split(size: int) -> Split:
        y = torch.arange(size) * 3 // size
        x = torch.randn(size, *SHAPE, generator=generator) + y.view(-1, 1, 1, 1)
        return Split.of(x, y)

    made = Task("a task", 3, split(rows), split(33), split(1)).to(device)
    return Task("a task", 3, *(Split.of(each.x.to(dtype), each.y) for each in (made.train, made.valid, made.test)))


def learner(kind: type[Method] | str, norm: str = "batch", device: str = "cpu", **how: Any) -> Method:
    kind = METHODS[kind] if isinstance(kind, str) else kind
    options = {} if norm == "none" else {"width": 3, "norm": norm}
    net = build("mlp" if norm == "none" else "alexnet", input_shape=SHAPE, classes=[3, 3], seed=0, **options)
    return kind(net.to(device, **how), lr=0.05, **OPTIONS.get(kind.name, {}))


def taught(method: Method, data: Task) -> tuple[int, Task]:
    """The task a method learns next, when it has one behind it; all at once where that is how it learns."""
    if method.name == "multitask":
        joined = method.curriculum(Stream("two", (data, data), "multi", SHAPE, (3, 3)))[0].to(method.device)
        method.start(0)
        return 0, joined
    method.start(0)
    method.step(data.train.x[:16], data.train.y[:16])
    method.finish(0, data.train)
    method.start(1)
    return 1, data


def measured(validation: Validation) -> tuple[tuple[float, float], int]:
    """What it says, and how many functions it yielded."""
    starts, work = 0, validation.measure()
    while True:
        try:
            start = next(work)
        except StopIteration as end:
            return end.value, starts
        if start is not None:
            start()
            starts += 1


@pytest.mark.parametrize("norm", ["running", "batch", "none"])
@pytest.mark.parametrize("name", METHODS)
def test_a_recorded_validation_follows_the_weights_of_every_method(name: str, norm: str, graphs: list[Graph]) -> None:
    method = learner(name, norm)
    number, data = taught(method, task())
    splits = method.validation(number, data.valid)
    plain, recorded = (Validation(method, splits, 16, record=record) for record in (False, True))
    said = []
    for epoch in range(4):
        method.network.train()
        method.on_epoch_start(epoch, 4, 5)
        for part in torch.arange(len(data.train)).split(16):
            method.step(data.train.x[part], data.train.y[part])
        method.on_epoch_end()
        (expected, _), (found, starts) = measured(plain), measured(recorded)
        assert found == pytest.approx(expected, rel=1e-6)
        assert starts == (epoch > 0)
        said.append(found)
    assert recorded.fallback is None
    assert [graph.replays for graph in graphs] == [3]
    assert len({loss for loss, _ in said}) == 4


def test_weights_that_are_put_back_are_seen(graphs: list[Graph]) -> None:
    method, data = learner("finetune"), task()
    validation = Validation(method, {0: data.valid}, 16, record=True)
    best = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    first, _ = measured(validation)
    method.step(data.train.x, data.train.y)
    assert measured(validation)[0] != first
    method.network.load_state_dict(best)
    assert measured(validation)[0] == first
    assert len(graphs) == 1


def test_it_is_recorded_with_dropout_off_and_without_garbage_collections(graphs: list[Graph]) -> None:
    class Watched(Finetune):
        logits_recordable = True

        def logits(self, x: Tensor, task: int) -> Tensor:
            seen.append((self.network.training, gc.isenabled()))
            return super().logits(x, task)

    seen: list[tuple[bool, bool]] = []
    validation = Validation(learner(Watched), {0: task().valid}, 33, record=True)
    for _ in range(3):
        validation.method.network.train()
        measured(validation)
        assert not validation.method.network.training  # as `finish` finds it, recorded or not
    assert seen == [(False, True), (False, False)]  # the third time, Python is not asked
    assert gc.isenabled()


@pytest.mark.parametrize("says_so", [False, True])
def test_answers_of_their_own_are_recorded_only_where_the_method_says_that_they_can_be(
    says_so: bool, graphs: list[Graph]
) -> None:
    class Own(Finetune):
        if says_so:
            logits_recordable = True

        def logits(self, x: Tensor, task: int) -> Tensor:
            return 2 * super().logits(x, task)

    class Heir(Own):
        pass

    validation = Validation(learner(Heir), {0: task().valid}, 16, record=True)
    said = {measured(validation)[0] for _ in range(3)}
    assert len(said) == 1
    assert len(graphs) == says_so
    assert validation.fallback is None


def test_what_cannot_be_recorded_is_measured_plainly_and_said(graphs: list[Graph]) -> None:
    class Peeking(Finetune):
        logits_recordable = True

        def logits(self, x: Tensor, task: int) -> Tensor:
            return super().logits(x, task) + x.sum().item()

    method = learner(Peeking)
    plain, asked = (Validation(method, {0: task().valid}, 16, record=record) for record in (False, True))
    expected, _ = measured(plain)
    assert [measured(asked) for _ in range(3)] == [(expected, 0)] * 3
    assert asked.fallback == "validation is not captured: operation not permitted when stream is capturing"
    assert failed == graphs
    assert len(graphs) == 1  # it is not tried again
    assert gc.isenabled()


def test_on_a_cpu_nothing_is_recorded(graphs: list[Graph]) -> None:
    method, data = learner("finetune"), task()
    for start in Trainer(Schedule(0.05, 4, batch=16)).fit(method, 0, data, TrainingState(), lambda *_: None):
        assert start is None
    assert graphs == []


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["running", "batch", "none"])
@pytest.mark.parametrize("name", METHODS)
def test_a_captured_validation_is_the_plain_one(name: str, norm: str) -> None:
    device = torch.device("cuda", 0)
    random = RandomState(5, device)
    random.use()
    with torch.cuda.stream(torch.cuda.Stream(device)):
        method = learner(name, norm, "cuda", dtype=torch.float64)
        number, data = taught(method, task(device="cuda", dtype=torch.float64))
        steps = CapturedSteps(method, data.train, 16)
        at_once(steps.record())
        splits = method.validation(number, data.valid)
        plain, recorded = (Validation(method, splits, 16, record=record) for record in (False, True))
        losses = []
        for epoch in range(4):
            method.network.train()
            method.on_epoch_start(epoch, 4, steps.count)
            for start in steps.epoch():
                if start is not None:
                    start()
            method.on_epoch_end()
            (expected, _), (found, starts) = measured(plain), measured(recorded)
            assert found == pytest.approx(expected, rel=1e-9)
            assert starts == (epoch > 0)
            losses.append(found[0])
    assert recorded.fallback is None
    assert len(set(losses)) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_a_trainer_records_validation_as_it_records_steps(norm: str) -> None:
    device = torch.device("cuda", 0)
    found: list[list[EpochDone]] = []
    for steps in ("eager", "auto"):
        RandomState(5, device).use()
        done: list[EpochDone] = []
        with torch.cuda.stream(torch.cuda.Stream(device)):
            method, data = learner("finetune", norm, "cuda"), task(device="cuda")
            method.start(0)
            trainer = Trainer(Schedule(1e-4, 4, batch=16, evaluation_batch=16), steps=steps)
            for start in trainer.fit(method, 0, data, TrainingState(), lambda epoch, _, done=done: done.append(epoch)):
                if start is not None:
                    start()
        assert trainer.fallback is None or "one kernel" in trainer.fallback
        found.append(done)
    for eager, recorded in zip(*found, strict=True):
        assert recorded.valid_loss == pytest.approx(eager.valid_loss, rel=1e-2)


@pytest.mark.gpu
def test_after_a_capture_that_failed_training_goes_on() -> None:
    """A method that says of its answers what is not so, and then draws random numbers as any does."""

    class Peeking(Finetune):
        logits_recordable = True

        def logits(self, x: Tensor, task: int) -> Tensor:
            return super().logits(x, task) + x.sum().item()

    device = torch.device("cuda", 0)
    RandomState(5, device).use()
    done: list[EpochDone] = []
    with torch.cuda.stream(torch.cuda.Stream(device)):
        method = learner(Peeking, "batch", "cuda")
        method.start(0)
        trainer = Trainer(Schedule(0.01, 4, batch=16))
        work = trainer.fit(method, 0, task(device="cuda"), TrainingState(), lambda epoch, _: done.append(epoch))
        for start in work:
            if start is not None:
                start()
    assert len(done) == 4
    assert trainer.fallback is not None
    assert trainer.fallback.startswith("validation is not captured: ")


@pytest.mark.gpu
def test_a_step_that_asks_the_host_is_taken_plainly_and_others_are_still_captured() -> None:
    class Asking(Finetune):
        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = super().step(x, y)
            return loss if loss.item() > 0 else -loss

    device = torch.device("cuda", 0)
    RandomState(5, device).use()
    with torch.cuda.stream(torch.cuda.Stream(device)):
        for kind, how in ((Asking, EagerSteps), (Finetune, CapturedSteps)):
            method, trainer = learner(kind, "batch", "cuda"), Trainer(Schedule(0.01, 2, batch=16))
            method.start(0)
            steps = at_once(trainer.steps_of(method, task(device="cuda")))
            assert type(steps) is how
            assert (trainer.fallback is None) == (how is CapturedSteps)
            assert trainer.steps == ("auto" if how is CapturedSteps else "eager")  # not tried again
            for start in steps.epoch():
                if start is not None:
                    start()
            assert float(steps.loss) > 0
