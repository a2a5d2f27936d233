"""FS-DGPM with its inner loop written out, and a memory that is computed from the buffer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_nets import train
from torch import Tensor

from remnant.data import Split
from remnant.methods.fsdgpm import FSDGPM
from remnant.models import Network, build

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")
LR, ASCENT, RATE = 0.125, 0.3, 0.5


def network(**options: Any) -> Network:
    return build("mlp", input_shape=(12,), classes=(3, 3, 3), seed=7, **{"hidden": (10, 9), **options}).double()


def data(seed: int, count: int = 40) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 12, generator=g, dtype=torch.float64)
    x[:, 6:] *= 0.2
    return Split.of(x, torch.randint(0, 3, (count,), generator=g))


def fsdgpm(net: Network, **options: Any) -> FSDGPM:
    given: dict[str, Any] = {"lr": LR, "threshold": {"value": 0.8}, "samples": 500, "memory": 30, "ascent": ASCENT}
    return FSDGPM(net, **{**given, "importance_lr": RATE, "importance_start": 0.1, **options})


class SlowFSDGPM:
    """θ' and Λ as plain functions of θ and s, with autograd through all of it, for two tasks of an MLP."""

    def __init__(self, net: Any, bases: list[Tensor], start: float, clip: float, *, second_order: bool) -> None:
        self.net, self.M, self.clip, self.second_order = net, bases, clip, second_order
        self.s = [torch.full((M.shape[1],), start, dtype=torch.float64).requires_grad_() for M in bases]
        self.v = [torch.zeros_like(s) for s in self.s]

    def loss(self, weights: list[Tensor], x: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        for W in weights:
            x = F.relu(x @ W.T)
        each = [F.cross_entropy(self.net.heads[int(t)](x[i : i + 1]), y[i : i + 1]) for i, t in enumerate(tasks)]
        return torch.stack(each).mean()

    def step(self, x: Tensor, y: Tensor, old: Split) -> None:
        own = [layer.weight for layer in self.net.hidden]
        projections = [M @ torch.diag(torch.sigmoid(10 * s)) @ M.T for M, s in zip(self.M, self.s, strict=True)]
        weights = list(own)
        for half in (slice(0, 4), slice(4, 8)):
            loss = self.loss(weights, x[half], y[half], torch.ones(4))
            gradients = torch.autograd.grad(loss, weights, create_graph=self.second_order)
            weights = [W + ASCENT * g @ P for W, g, P in zip(weights, gradients, projections, strict=True)]
        tasks = torch.cat([torch.ones(len(y)), torch.zeros(len(old))])
        loss = self.loss(weights, torch.cat([x, old.x]), torch.cat([y, old.y]), tasks)
        trained = [*own, *(head.weight for head in self.net.heads[:2])]
        found = torch.autograd.grad(loss, [*trained, *self.s])
        length = torch.cat([g.flatten() for g in found[: len(trained)]]).norm()
        with torch.no_grad():
            for n, (p, g) in enumerate(zip(trained, found, strict=False)):
                g = g * min(1.0, self.clip / float(length))
                p -= LR * (g - g @ projections[n] if n < len(own) else g)
            for s, v, g in zip(self.s, self.v, found[len(trained) :], strict=True):
                v.mul_(0.9).add_(g)
                s -= RATE * v


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_it_is_the_algorithm_written_out(second_order: bool, clip: float) -> None:
    ours, theirs = network(), network()
    method = fsdgpm(ours, second_order=second_order, clip=clip)
    method.start(0)
    train(method, data(0))
    method.finish(0, data(0))
    theirs.load_state_dict(ours.state_dict())
    method.start(1)
    bases = [method.bases[f"hidden.{n}"] for n in range(2)]
    slow = SlowFSDGPM(theirs, bases, 0.1, clip, second_order=second_order)
    split, old = data(1), data(2, 8)
    method.buffer.draw = lambda count: (old.x, old.y)  # type: ignore[method-assign]  # labels of the first head
    for part in torch.arange(40).split(8):
        method.step(split.x[part], split.y[part])
        slow.step(split.x[part], split.y[part], old)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-10)
    for s, expected in zip(method.importance.values(), slow.s, strict=True):
        torch.testing.assert_close(s, expected.detach(), rtol=1e-8, atol=1e-10)
        assert not torch.allclose(s, torch.full_like(s, 0.1), atol=1e-3)  # Λ is learnt


def test_the_memory_is_that_of_the_buffer_and_not_of_all_tasks() -> None:
    method = fsdgpm(network(), memory=25)
    ranks = []
    for task in range(3):
        split = data(task)
        wide = torch.zeros(12, dtype=torch.float64)
        wide[4 * task : 4 * task + 4] = 1  # each task has four inputs of its own
        split = Split.of(split.x * wide, split.y)
        method.start(task)
        train(method, split)
        drawn = method.buffer.draw
        method.buffer.draw = lambda count, split=split: (split.x, split.y)  # type: ignore[method-assign, misc]  # the last task alone
        method.finish(task, split)
        method.buffer.draw = drawn  # type: ignore[method-assign]
        subspace: Any = method.memory.subspaces["hidden.0"]
        ranks.append(subspace.rank)
        assert float(subspace.basis.square().sum(1)[wide == 0].sum()) < 1e-20
    assert max(ranks) <= 4
    assert sum(method.ranks()["hidden.0"]) == ranks[-1]
    assert method.nbytes == method.memory.report().nbytes + 25 * (12 * 8 + 8)


def test_hard_weights_protect_and_soft_ones_let_go() -> None:
    moved = {}
    for start in (5.0, -5.0):
        method = fsdgpm(network(), importance_start=start, importance_lr=0.0)
        method.start(0)
        train(method, data(0))
        method.finish(0, data(0))
        method.start(1)
        before = {name: layer.image(method.bases[name]) for name, layer in method.layers.items()}
        train(method, data(1))
        ends = {name: layer.image(method.bases[name]) for name, layer in method.layers.items()}
        moved[start] = max(float((ends[name] - before[name]).norm()) for name in before)
    assert moved[5.0] < 1e-9 < 1e-2 < moved[-5.0]
