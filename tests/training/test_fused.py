"""One kernel for many steps takes the steps that plain ones take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remnant.data import Split
from remnant.methods import METHODS, Method
from remnant.models import build
from remnant.training.fused import FusedSteps, fits
from remnant.training.steps import EagerSteps

OPTIONS: dict[str, dict[str, Any]] = {"gpm": {"threshold": {"value": 0.9}, "samples": 50}}


def learner(method: str, device: str, classes: Any = 10, **shape: Any) -> Method:
    net = build("mlp", input_shape=(1, 12, 13), classes=classes, seed=1, **shape)
    return METHODS[method](net.to(device), lr=0.05, **OPTIONS.get(method, {}))


def split(device: str, rows: int = 607) -> Split:
    torch.manual_seed(0)
    return Split.of(torch.randn(rows, 1, 12, 13, device=device), torch.randint(0, 10, (rows,), device=device))


@pytest.mark.parametrize("classes", [10, [10, 10]], ids=["one head", "two heads"])
def test_what_remains_is_what_a_step_multiplies_the_gradient_with(classes: Any) -> None:
    method, data = learner("gpm", "cpu", classes), split("cpu")
    assert method.remaining() == {}
    method.start(0)
    method.finish(0, data)
    method.start(1)
    remaining = method.remaining()
    assert remaining is not None
    assert remaining.keys() == {"hidden.0", "hidden.1", *(["head"] if classes == 10 else [])}
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
            kept = gradient @ remaining[layer] if layer in remaining else gradient
            torch.testing.assert_close(parameter.detach(), before[name] - 0.05 * kept, rtol=1e-5, atol=1e-6)


def test_it_is_for_small_plain_networks_and_methods_on_a_gpu() -> None:
    torch.set_float32_matmul_precision("highest")
    assert not fits(learner("gpm", "cpu"), 10)


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [10, [10, 10]], ids=["one head", "two heads"])
@pytest.mark.parametrize("method", ["gpm", "finetune", "single-task"])
@pytest.mark.parametrize("first", [True, False], ids=["first task", "second task"])
def test_a_hundred_fused_steps_equal_eager_ones(method: str, classes: Any, first: bool) -> None:
    torch.set_float32_matmul_precision("highest")
    ends = []
    for kind, options in ((EagerSteps, {}), (FusedSteps, {"precision": "ieee"})):
        method_, data = learner(method, "cuda", classes), split("cuda")
        method_.start(0)
        if not first:
            method_.finish(0, data)
            method_.start(1)
        torch.manual_seed(3)
        steps = kind(method_, data, 10, **options)
        for _ in range(2):
            for _ in steps.epoch():
                pass
        ends.append(([p.detach().clone() for p in method_.network.parameters()], steps.loss.item()))
    (eager, loss), (fused, fused_loss) = ends
    assert fused_loss == pytest.approx(loss, rel=1e-4)
    for a, b in zip(eager, fused, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_it_says_what_it_can_take() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        assert fits(learner("gpm", "cuda"), 10)
        assert not fits(learner("gpm", "cuda"), 64)
        assert not fits(learner("gpm", "cuda", hidden=(200, 100)), 10)
        assert not fits(learner("gpm", "cuda", hidden=(100,)), 10)
        assert not fits(learner("gpm", "cuda", bias=True), 10)
        assert not fits(learner("multitask", "cuda", [10, 10]), 10)
    finally:
        torch.set_float32_matmul_precision("highest")
