"""Scaled gradient projection against its formulas written out, and the options that it shares with GPM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.accelerated.manual_backward import ManualBackwardSteps, is_linear_chain
from remnant.data import Split
from remnant.methods import METHODS, Method
from remnant.methods.gpm import GradientProjection
from remnant.methods.sgp import SGP
from remnant.models import Network, build
from remnant.training import EagerSteps, run_to_completion

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def network(kind: str = "mlp", classes: Any = (3, 3, 3), **options: Any) -> Network:
    usual: dict[str, Any] = {"hidden": (10, 9)} if kind == "mlp" else {"width": 2}
    shape = (12,) if kind == "mlp" else (3, 19, 19)
    return build(kind, input_shape=shape, classes=classes, seed=7, **{**usual, **options})


def data(shape: Any = (12,), seed: int = 0, used: int = 7) -> Split:
    """Inputs in a part of the space, so that tasks share some of it."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(40, *shape, generator=g)
    if len(shape) == 1:
        x[:, used:] *= 0.1
    return Split.of(x, torch.randint(0, 3, (40,), generator=g))


def train(method: Method, split: Split) -> None:
    for part in torch.arange(40).split(8):
        method.step(split.x[part], split.y[part])


def learn(method: Method, tasks: int, shape: Any = (12,)) -> None:
    for task in range(tasks):
        split = data(shape, task)
        method.start(task)
        train(method, split)
        method.on_epoch_end()
        method.finish(task, split)


class SlowSGP:
    """The paper's steps for an MLP: numpy's SVDs of the inputs and of their part inside the memory."""

    def __init__(self, net: Network, lr: float, threshold: float, alpha: float) -> None:
        self.net, self.lr, self.threshold, self.alpha = net, lr, threshold, alpha
        self.layers: list[Any] = list(net.hidden)  # type: ignore[arg-type]
        self.bases = [np.zeros((layer.in_features, 0)) for layer in self.layers]
        self.weights = [np.zeros(0) for _ in self.layers]

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        weights = [*(layer.weight for layer in self.layers), self.net.head_of(task).weight]
        gradients = torch.autograd.grad(F.cross_entropy(self.net(x, task), y), weights)
        with torch.no_grad():
            for n, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                if n < len(self.layers):
                    M, L = torch.from_numpy(self.bases[n]), torch.from_numpy(np.diag(self.weights[n]))
                    gradient = gradient - gradient @ M @ L @ M.T
                weight -= self.lr * gradient

    @torch.no_grad()
    def finish(self, x: Tensor) -> None:
        for n, layer in enumerate(self.layers):
            self._grow(n, x.T.numpy())
            x = F.relu(layer(x))

    def _grow(self, n: int, R: np.ndarray[Any, Any]) -> None:
        M, old = self.bases[n], self.weights[n]
        inside = M @ M.T @ R
        U, sigma, _ = np.linalg.svd(R - inside, full_matrices=False)
        k, explained = 0, (inside**2).sum()
        while explained < self.threshold * (R**2).sum():
            explained += sigma[k] ** 2
            k += 1
        Uc, sigma_c, _ = np.linalg.svd(inside, full_matrices=False)
        of_old = np.sqrt(((M.T @ Uc) ** 2 * sigma_c**2).sum(axis=1))
        stack = np.concatenate([of_old, sigma[:k]])
        gained = (self.alpha + 1) * stack / (self.alpha * stack + stack.max())
        self.weights[n] = np.concatenate([np.minimum(1, old + gained[: len(old)]), gained[len(old) :]])
        self.bases[n] = np.hstack([M, U[:, :k]])


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_it_is_the_algorithm_written_out(alpha: float) -> None:
    ours, theirs = network().double(), network().double()
    method = SGP(ours, lr=0.125, threshold={"value": 0.9}, samples=1000, alpha=alpha)
    slow, softest = SlowSGP(theirs, 0.125, 0.9, alpha), 1.0
    for task in range(3):
        split = data(seed=task)
        x = split.x.double()
        method.start(task)
        for part in torch.arange(40).split(8):
            method.step(x[part], split.y[part])
            slow.step(x[part], split.y[part], task)
        method.finish(task, Split.of(x, split.y))
        slow.finish(x)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
        for n, subspace in enumerate(method.memory.subspaces.values()):
            np.testing.assert_allclose(subspace.weights.numpy(), slow.weights[n], rtol=1e-7)
            softest = min(softest, slow.weights[n].min())
    assert softest < 0.9


def test_directions_without_a_new_one_still_gain_weight() -> None:
    method = SGP(network(), lr=0.1, threshold={"value": 0.9}, samples=1000, alpha=1.0)
    for task in range(2):
        method.start(task)
        method.finish(task, data())  # the same inputs twice, and weights that did not move
        if task == 0:
            before = next(iter(method.memory.subspaces.values())).weights
    assert method.ranks()["hidden.0"][1] == 0
    after = next(iter(method.memory.subspaces.values())).weights
    assert torch.all((after > before) | (before == 1))
    torch.testing.assert_close(after, (2 * before).clamp(max=1))


@pytest.mark.parametrize("kind", ["mlp", "alexnet"])
def test_with_a_large_alpha_it_is_gpm(kind: str) -> None:
    options: dict[str, Any] = {"lr": 0.05, "threshold": {"value": 0.9}, "samples": 40, "rank_rule": "authors"}
    ends = []
    for kind_of in (GradientProjection, lambda net, **o: SGP(net, alpha=1e15, **o)):
        torch.manual_seed(0)
        drop = {"dropout": (0.0, 0.0)} if kind == "alexnet" else {}
        method = kind_of(network(kind, **drop).double(), **options)  # type: ignore[operator]
        shape = method.network.input_shape
        for task in range(3):
            split = data(shape, task)
            split = Split.of(split.x.double(), split.y)
            torch.manual_seed(task)
            method.start(task)
            train(method, split)
            method.finish(task, split)
        ends.append(list(method.network.parameters()))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_its_fast_form_takes_the_same_steps() -> None:
    ends = []
    for steps in (EagerSteps, ManualBackwardSteps):
        method = SGP(network(), lr=0.05, threshold={"value": 0.9}, samples=40)
        torch.manual_seed(0)
        learn(method, 1)
        method.start(1)
        assert is_linear_chain(method)
        torch.manual_seed(1)
        run_to_completion(steps(method, data(seed=1), 8).epoch())
        ends.append(list(method.network.parameters()))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_label_smoothing_is_that_of_cross_entropy() -> None:
    split = data()
    for name in ("gpm", "sgp"):
        method = METHODS[name](network(), lr=0.1, label_smoothing=0.1)
        expected = F.cross_entropy(method.network(split.x, 0), split.y, label_smoothing=0.1)
        assert torch.equal(method.loss(split.x, split.y), expected)


@pytest.mark.parametrize("norm", ["running", "batch"])
def test_own_norms_are_kept_with_their_task(norm: str) -> None:
    net, shape = network("alexnet", norm=norm), (3, 19, 19)
    method = METHODS["gpm"](net, lr=0.05, threshold={"value": 0.9}, samples=40, task_norms="own")
    learn(method, 2, shape)
    first, second = (method.own_tensors[str(task)] for task in range(2))
    assert first.keys() == {name for name in net.state_dict() if name.startswith("norm")}
    assert not any(torch.equal(first[name], second[name]) for name in first if name.endswith(("weight", "mean")))
    now = net.state_dict()
    assert all(torch.equal(now[name], second[name]) for name in second)
    net.eval()
    x = data(shape).x
    logits = method.logits(x, 0)
    net.load_state_dict({**now, **first})
    assert torch.equal(logits, net(x, 0))
    bare = METHODS["gpm"](network("alexnet", norm=norm), lr=0.05, threshold={"value": 0.9}, samples=40)
    learn(bare, 2, shape)
    assert method.nbytes - method.memory.report().nbytes == 2 * sum(t.nbytes for t in first.values())
    assert bare.nbytes == bare.memory.report().nbytes
