"""A captured validation measures the current weights, as a plain one does."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from replaying import POOL, Graph
from torch import Tensor

from remnant.accelerated import FastestTrainer, fuse_activations
from remnant.accelerated.cuda_graph import CapturedSteps, CapturedValidation, can_capture_validation
from remnant.data import Split, Stream, Task
from remnant.methods import METHODS, Finetune, Method
from remnant.models import build
from remnant.training import (
    EagerSteps,
    EpochDone,
    RandomState,
    Schedule,
    TrainingState,
    Validation,
    run_to_completion,
)
from small_options import OPTIONS

SHAPE = (3, 19, 19)
failed: list[Graph] = []  # captures that were cleaned up after


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs made during a test, on a CPU."""
    made: list[Graph] = []

    def make() -> Graph:
        made.append(Graph())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", make)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr("remnant.accelerated.cuda_graph._clean_up", lambda graph, pool: failed.append(graph))
    failed.clear()
    return made


def task(rows: int = 90, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Task:
    """A task sorted by class. Its validation set has one example more than a whole number of batches."""
    generator = torch.Generator().manual_seed(3)

    def split(size: int) -> Split:
        y = torch.arange(size) * 3 // size
        x = torch.randn(size, *SHAPE, generator=generator) + y.view(-1, 1, 1, 1)
        return Split.of(x, y)

    made = Task("a task", 3, split(rows), split(33), split(1)).to(device)
    return Task("a task", 3, *(Split.of(each.x.to(dtype), each.y) for each in (made.train, made.valid, made.test)))


def learner(kind: type[Method] | str, norm: str = "batch", device: str = "cpu", **how: Any) -> Method:
    kind = METHODS[kind] if isinstance(kind, str) else kind
    options = {} if norm == "none" else {"width": 3, "norm": norm, "dropout": (0.2, 0.5)}
    net = build("mlp" if norm == "none" else "alexnet", input_shape=SHAPE, classes=[3, 3], seed=0, **options)
    fuse_activations(net)
    return kind(net.to(device, **how), lr=0.05, **OPTIONS.get(kind.name, {}))


def taught(method: Method, data: Task) -> tuple[int, Task]:
    """The method's second task, after the first one is learned; for joint training, the only task."""
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
    """Loss and accuracy, and how many functions the measurement yielded."""
    calls, work = 0, validation.measure()
    while True:
        try:
            blocking = next(work)
        except StopIteration as end:
            return end.value, calls
        if blocking is not None:
            blocking()
            calls += 1


# Each method with running statistics, which change during training; the other networks where no method adds to them.
@pytest.mark.parametrize(
    ("name", "norm"),
    [*((name, "running") for name in METHODS), ("finetune", "batch"), ("gpm", "batch"), ("gpm", "none")],
)
def test_a_captured_validation_follows_the_weights_of_every_method(name: str, norm: str, graphs: list[Graph]) -> None:
    method = learner(name, norm)
    number, data = taught(method, task())
    splits = method.validation(number, data.valid)
    plain, captured = Validation(method, splits, 16), CapturedValidation(method, splits, 16)
    assert can_capture_validation(method)
    losses = []
    for epoch in range(3):
        method.network.train()
        method.on_epoch_start(epoch, 3, 5)
        for part in torch.arange(len(data.train)).split(16):
            method.step(data.train.x[part], data.train.y[part])
        method.on_epoch_end()
        (expected, _), (found, calls) = measured(plain), measured(captured)
        assert found == pytest.approx(expected, rel=1e-6)
        assert calls == (epoch > 0)
        losses.append(found[0])
    assert captured.fallback is None
    assert [graph.replays for graph in graphs] == [2]
    assert max(losses) < 1000  # after training that diverges, the comparison would show nothing
    assert len(set(losses)) == (1 if name == "analytic" else 3)  # it has learnt all after one epoch


def test_it_sees_restored_weights(graphs: list[Graph]) -> None:
    method, data = learner("finetune"), task()
    validation = CapturedValidation(method, {0: data.valid}, 16)
    best = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    first, _ = measured(validation)
    method.step(data.train.x, data.train.y)
    assert measured(validation)[0] != first
    method.network.load_state_dict(best)
    assert measured(validation)[0] == first
    assert len(graphs) == 1


def test_it_is_captured_in_evaluation_mode_and_without_garbage_collections(graphs: list[Graph]) -> None:
    class Watched(Finetune):
        logits_recordable = True

        def logits(self, x: Tensor, task: int) -> Tensor:
            seen.append((self.network.training, gc.isenabled()))
            return super().logits(x, task)

    seen: list[tuple[bool, bool]] = []
    validation = CapturedValidation(learner(Watched), {0: task().valid}, 33)
    for _ in range(3):
        validation.method.network.train()
        measured(validation)
        assert not validation.method.network.training  # `finish` expects this
    assert seen == [(False, True), (False, False)]  # the third time is a replay
    assert gc.isenabled()


@pytest.mark.parametrize("declared", [False, True])
def test_overridden_logits_are_captured_only_if_the_class_declares_that_they_can_be(declared: bool) -> None:
    class Own(Finetune):
        if declared:
            logits_recordable = True

        def logits(self, x: Tensor, task: int) -> Tensor:
            return 2 * super().logits(x, task)

    class Heir(Own):
        pass

    method = learner(Heir)
    assert can_capture_validation(method) == declared
    method.logits = lambda x, task: 3 * x  # type: ignore[method-assign]
    assert not can_capture_validation(method)


def test_a_failed_capture_falls_back_to_a_plain_validation_and_gives_the_reason(graphs: list[Graph]) -> None:
    class Peeking(Finetune):
        logits_recordable = True

        def logits(self, x: Tensor, task: int) -> Tensor:
            return super().logits(x, task) + x.sum().item()

    method = learner(Peeking)
    plain, captured = Validation(method, {0: task().valid}, 16), CapturedValidation(method, {0: task().valid}, 16)
    expected, _ = measured(plain)
    assert [measured(captured) for _ in range(3)] == [(expected, 0)] * 3
    assert captured.fallback == "validation is not captured: operation not permitted when stream is capturing"
    assert failed == graphs
    assert len(graphs) == 1  # it is not tried again
    assert gc.isenabled()


def test_on_a_cpu_nothing_is_captured(graphs: list[Graph]) -> None:
    method, data = learner("finetune"), task()
    trainer = FastestTrainer(Schedule(0.05, 4, batch=16))
    for blocking in trainer.fit(method, 0, data, TrainingState(), lambda *_: None):
        assert blocking is None
    assert graphs == []


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["running", "batch", "none"])
@pytest.mark.parametrize("name", METHODS)
def test_a_captured_validation_equals_the_plain_one(name: str, norm: str) -> None:
    device = torch.device("cuda", 0)
    random = RandomState(5, device)
    random.use()
    with torch.cuda.stream(torch.cuda.Stream(device)):
        method = learner(name, norm, "cuda", dtype=torch.float64)
        number, data = taught(method, task(device="cuda", dtype=torch.float64))
        steps = CapturedSteps(method, data.train, 16)
        run_to_completion(steps.capture())
        splits = method.validation(number, data.valid)
        plain, captured = Validation(method, splits, 16), CapturedValidation(method, splits, 16)
        losses = []
        for epoch in range(4):
            method.network.train()
            method.on_epoch_start(epoch, 4, steps.count)
            run_to_completion(steps.epoch())
            method.on_epoch_end()
            (expected, _), (found, calls) = measured(plain), measured(captured)
            assert found == pytest.approx(expected, rel=1e-9)
            assert calls == (epoch > 0)
            losses.append(found[0])
    assert captured.fallback is None
    assert len(set(losses)) == (1 if name == "analytic" else 4)  # it has learnt all after one epoch


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_a_trainer_captures_the_validation_if_it_captures_the_steps(norm: str) -> None:
    device = torch.device("cuda", 0)
    found: list[list[EpochDone]] = []
    for steps in ("eager", "auto"):
        RandomState(5, device).use()
        done: list[EpochDone] = []
        with torch.cuda.stream(torch.cuda.Stream(device)):
            method, data = learner("finetune", norm, "cuda"), task(device="cuda")
            method.start(0)
            trainer = FastestTrainer(Schedule(1e-4, 4, batch=16, evaluation_batch=16), steps)
            fit = trainer.fit(method, 0, data, TrainingState(), lambda epoch, _, done=done: done.append(epoch))
            run_to_completion(fit)
        assert trainer.fallback is None or "one kernel" in trainer.fallback
        found.append(done)
    for eager, captured in zip(*found, strict=True):
        assert captured.valid_loss == pytest.approx(eager.valid_loss, rel=1e-2)


@pytest.mark.gpu
def test_training_continues_after_a_failed_capture() -> None:
    """The method declares wrongly that its logits can be captured. Later epochs draw random numbers as usual."""

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
        trainer = FastestTrainer(Schedule(0.01, 4, batch=16))
        fit = trainer.fit(method, 0, task(device="cuda"), TrainingState(), lambda epoch, _: done.append(epoch))
        run_to_completion(fit)
    assert len(done) == 4
    assert trainer.fallback is not None
    assert trainer.fallback.startswith("validation is not captured: ")


@pytest.mark.gpu
def test_a_step_that_reads_a_value_on_the_host_is_not_captured_and_others_still_are() -> None:
    class Asking(Finetune):
        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = super().step(x, y)
            return loss if loss.item() > 0 else -loss

    device = torch.device("cuda", 0)
    RandomState(5, device).use()
    with torch.cuda.stream(torch.cuda.Stream(device)):
        for kind, how in ((Asking, EagerSteps), (Finetune, CapturedSteps)):
            method, trainer = learner(kind, "batch", "cuda"), FastestTrainer(Schedule(0.05, 1, batch=16))
            method.start(0)
            steps = run_to_completion(trainer.steps(method, task(device="cuda").train))
            assert type(steps) is how
            assert (trainer.fallback is None) == (how is CapturedSteps)
            assert trainer.kind == ("auto" if how is CapturedSteps else "eager")  # a failed capture is not repeated
            run_to_completion(steps.epoch())
            assert float(steps.loss) > 0
