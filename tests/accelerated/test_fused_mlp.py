"""One kernel for a whole epoch takes the steps of `EagerSteps`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from remnant.accelerated import FastestTrainer
from remnant.accelerated.cuda_program import KernelError
from remnant.accelerated.fused_mlp import FusedSteps, fits
from remnant.data import Split
from remnant.methods import METHODS, Method
from remnant.models import build
from remnant.training import EagerSteps, Schedule, run_to_completion

BOTH = (FusedSteps, EagerSteps)
OPTIONS: dict[str, dict[str, Any]] = {"gpm": {"threshold": {"value": 0.9}, "samples": 50}}


SHAPE = (1, 12, 13)


def learner(method: str, device: str, classes: Any = 10, input_shape: tuple[int, ...] = SHAPE, **shape: Any) -> Method:
    net = build("mlp", input_shape=input_shape, classes=classes, seed=1, **shape)
    return METHODS[method](net.to(device), lr=0.05, **OPTIONS.get(method, {}))


def split(device: str, rows: int = 607, input_shape: tuple[int, ...] = SHAPE, classes: int = 10) -> Split:
    torch.manual_seed(0)
    return Split.of(torch.randn(rows, *input_shape, device=device), torch.randint(0, classes, (rows,), device=device))


@pytest.mark.parametrize("classes", [10, [10, 10]], ids=["one head", "two heads"])
def test_layer_projections_are_what_a_step_multiplies_the_gradient_with(classes: Any) -> None:
    method, data = learner("gpm", "cpu", classes), split("cpu")
    assert method.layer_projections() == {}
    method.start(0)
    method.finish(0, data)
    method.start(1)
    projections = method.layer_projections()
    assert projections.keys() == {"hidden.0", "hidden.1", *(["head"] if classes == 10 else [])}
    x, y = data.x[:10], data.y[:10]
    before = {name: p.detach().clone() for name, p in method.network.named_parameters()}
    free = dict(
        zip(
            before,
            torch.autograd.grad(method.loss(x, y), list(method.network.parameters()), allow_unused=True),
            strict=True,
        )
    )
    method.step(x, y)
    for name, parameter in method.network.named_parameters():
        gradient = free[name]
        if gradient is not None:
            layer = name.removesuffix(".weight")
            kept = gradient @ projections[layer] if layer in projections else gradient
            torch.testing.assert_close(parameter.detach(), before[name] - 0.05 * kept, rtol=1e-5, atol=1e-6)


def test_it_does_not_apply_on_a_cpu() -> None:
    assert not fits(learner("gpm", "cpu"), 10)


def test_a_machine_without_the_kernel_takes_slower_steps_and_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise KernelError("The CUDA compiler library (libnvrtc) was not found.")

    monkeypatch.setattr("remnant.accelerated.fused_mlp.fits", lambda *_: True)
    monkeypatch.setattr("remnant.accelerated.fused_mlp.MlpKernel", missing)
    method, data = learner("gpm", "cpu"), split("cpu")
    method.start(0)
    method.device = torch.device("meta")  # any but the CPU
    trainer = FastestTrainer(Schedule(0.05, 1, batch=10))
    assert isinstance(run_to_completion(trainer.steps(method, data)), EagerSteps)
    assert trainer.fallback == "an epoch is not one kernel: The CUDA compiler library (libnvrtc) was not found."


def test_other_runs_may_continue_while_the_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compilation is yielded as a function, which a scheduler calls in another thread."""
    made: list[int] = []
    monkeypatch.setattr("remnant.accelerated.fused_mlp.fits", lambda *_: True)
    monkeypatch.setattr("remnant.accelerated.fused_mlp.MlpKernel", lambda chain, rows: made.append(rows))
    method, data = learner("gpm", "cpu"), split("cpu")
    method.start(0)
    method.device = torch.device("meta")  # any but the CPU
    steps = FastestTrainer(Schedule(0.05, 1, batch=10)).steps(method, data)
    compile_kernel = next(steps)
    assert made == []
    assert compile_kernel is not None
    compile_kernel()
    assert 10 in made
    with pytest.raises(StopIteration) as over:
        next(steps)
    assert isinstance(over.value.value, FusedSteps)


def test_the_kernel_gets_contiguous_int64_rows_from_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backwards(METHODS["finetune"]):  # type: ignore[misc]
        def order(self, train: Split, batch: int) -> Tensor:
            rows = torch.arange(len(train) - 1, -1, -1, dtype=torch.int32)
            return torch.stack([rows, rows], 1)[:, 0]

    taken: list[Tensor] = []

    class Reader:
        def __init__(self, *_: Any) -> None: ...

        def take_steps(self, order: Tensor, lr: Tensor, loss: Tensor) -> None:
            assert order.is_contiguous()
            assert order.dtype == torch.int64
            taken.append(order)

    monkeypatch.setattr("remnant.accelerated.fused_mlp.MlpKernel", Reader)
    method = Backwards(build("mlp", input_shape=SHAPE, classes=10, seed=1), lr=0.05)
    steps = FusedSteps(method, split("cpu", rows=27), 10)
    steps.compile()
    list(steps.epoch())
    assert [len(order) for order in taken] == [20, 7]
    assert torch.equal(torch.cat(taken), torch.arange(26, -1, -1))


def two_epochs(kind: Any, method: Method, data: Split, batch: int, *, first: bool) -> tuple[list[Tensor], Tensor]:
    """Weights and loss after two epochs of the first or the second task."""
    torch.manual_seed(3)  # for the remembered examples and the order of steps
    method.start(0)
    if not first:
        method.finish(0, data)
        method.start(1)
    steps = kind(method, data, batch)
    if isinstance(steps, FusedSteps):
        steps.compile()
    for _ in range(2):
        run_to_completion(steps.epoch())
    return [p.detach().clone() for p in method.network.parameters()], steps.loss


def assert_same(fused: tuple[list[Tensor], Tensor], eager: tuple[list[Tensor], Tensor]) -> None:
    assert fused[1].item() == pytest.approx(eager[1].item(), rel=1e-4)
    for a, b in zip(fused[0], eager[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [10, [10, 10]], ids=["one head", "two heads"])
@pytest.mark.parametrize("method", ["gpm", "finetune", "single-task"])
@pytest.mark.parametrize("first", [True, False], ids=["first task", "second task"])
def test_a_hundred_fused_steps_equal_eager_ones(method: str, classes: Any, first: bool) -> None:
    torch.set_float32_matmul_precision("highest")
    fused, eager = (two_epochs(kind, learner(method, "cuda", classes), split("cuda"), 10, first=first) for kind in BOTH)
    assert_same(fused, eager)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("inputs", "hidden", "classes", "batch"),
    [
        (784, (100, 100), 10, 10),
        (1024, (128, 128), 16, 16),
        (33, (17, 25), 3, 5),
        (5, (9, 64), 2, 1),
        (301, (60, 8), 7, 13),
    ],
)
def test_other_sizes_too(inputs: int, hidden: tuple[int, int], classes: int, batch: int) -> None:
    torch.set_float32_matmul_precision("highest")
    shape = (1, 1, inputs)
    data = split("cuda", 51 * batch - 2, shape, classes)  # the last batch is shorter
    fused, eager = (
        two_epochs(kind, learner("gpm", "cuda", classes, shape, hidden=hidden), data, batch, first=False)
        for kind in BOTH
    )
    assert_same(fused, eager)


@pytest.mark.gpu
def test_the_same_steps_give_the_same_bits() -> None:
    one, other = (two_epochs(FusedSteps, learner("gpm", "cuda"), split("cuda"), 10, first=False) for _ in range(2))
    assert one[1].item() == other[1].item()
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))


@pytest.mark.gpu
def test_several_streams_at_once() -> None:
    """Seeds that run together have a stream each. Each ends with the weights that it reaches alone."""
    alone = two_epochs(FusedSteps, learner("gpm", "cuda"), split("cuda"), 10, first=False)
    streams = [torch.cuda.Stream() for _ in range(4)]
    together = []
    for stream in streams:
        with torch.cuda.stream(stream):
            together.append(two_epochs(FusedSteps, learner("gpm", "cuda"), split("cuda"), 10, first=False))
    torch.cuda.synchronize()
    for each in together:
        assert all(torch.equal(a, b) for a, b in zip(each[0], alone[0], strict=True))


@pytest.mark.gpu
def test_fits_knows_the_limits_of_the_kernel() -> None:
    assert fits(learner("gpm", "cuda"), 10)
    assert not fits(learner("gpm", "cuda"), 64)
    assert not fits(learner("gpm", "cuda", hidden=(200, 100)), 10)
    assert not fits(learner("gpm", "cuda", hidden=(100,)), 10)
    assert not fits(learner("gpm", "cuda", bias=True), 10)
    assert not fits(learner("gpm", "cuda", input_shape=(3, 32, 32)), 10)
    assert not fits(learner("multitask", "cuda", [10, 10]), 10)
