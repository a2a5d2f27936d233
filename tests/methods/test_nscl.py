"""Adam-NSCL: torch's Adam with projected steps, the null space by numpy, and norms that EWC ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from remnant.data import Split
from remnant.methods.nscl import AdamNSCL
from remnant.models import Network, build

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")
LR, TOLERANCE = 0.0078125, 30.0  # a rate that float32 holds exactly


def network(**options: Any) -> Network:
    return build("mlp", input_shape=(12,), classes=(3, 3, 3), seed=7, **{"hidden": (10, 9), **options}).double()


def data(seed: int, shape: tuple[int, ...] = (12,)) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(40, *shape, generator=g, dtype=torch.float64)
    if len(shape) == 1:
        x = x * torch.logspace(0, -3, 12, dtype=torch.float64).roll(3 * seed)
    return Split.of(x, torch.randint(0, 3, (40,), generator=g))


def nscl(net: Network, optimizer: str | None = "adam", **options: Any) -> AdamNSCL:
    method = AdamNSCL(net, lr=LR, tolerance=TOLERANCE, samples=1000, **options)
    if optimizer:
        method.use_optimizer(optimizer)
    return method


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_it_is_the_algorithm_written_out(optimizer: str, normed: bool) -> None:
    ours: Any = network()
    theirs: Any = network()
    method = nscl(ours, None if optimizer == "sgd" else optimizer, normed=normed)
    sums = [np.zeros((layer.in_features, layer.in_features)) for layer in theirs.hidden]
    projections: list[Any] = [None, None]
    free = []
    for task in range(3):
        split = data(task)
        trained = [*(layer.weight for layer in theirs.hidden), theirs.heads[task].weight]
        adam = (torch.optim.Adam if optimizer == "adam" else torch.optim.SGD)(trained, lr=LR)
        method.start(task)
        for part in torch.arange(40).split(8):
            method.step(split.x[part], split.y[part])
            before = [p.detach().clone() for p in trained]
            adam.zero_grad()
            F.cross_entropy(theirs(split.x[part], task), split.y[part]).backward()
            adam.step()
            for p, old, P in zip(trained, before, projections, strict=False):
                if P is not None:
                    p.data = old + (p.data - old) @ torch.from_numpy(P)
        method.finish(task, split)
        x = split.x
        for n, layer in enumerate(theirs.hidden):
            sums[n] += (x.T @ x).numpy()
            values, vectors = np.linalg.eigh(sums[n])
            U = vectors[:, values <= TOLERANCE * max(values[0], len(values) * np.finfo(float).eps * values[-1])]
            projections[n] = U @ U.T / (np.linalg.norm(U @ U.T) if normed else 1)
            free.append(U.shape[1])
            assert ours.hidden[n].in_features - sum(method.ranks()[f"hidden.{n}"]) == U.shape[1]
            x = F.relu(x @ layer.weight.detach().T)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    assert min(free) > 0
    assert max(free[2:]) < 12
    assert method.nbytes == method.memory.report().nbytes + 8 * (12**2 + 10**2)


@pytest.mark.parametrize("norm", ["running", "batch"])
def test_norms_are_tied_by_ewc(norm: str) -> None:
    net = build(
        "alexnet", input_shape=(3, 19, 19), classes=(3, 3), seed=7, width=2, norm=norm, dropout=(0.0, 0.0)
    ).double()
    method, split = nscl(net, None, strength=1e4), data(0, (3, 19, 19))
    method.start(0)
    method.step(split.x, split.y)
    method.finish(0, split)
    method.start(1)
    for _ in range(2):
        method.step(split.x, split.y)
    loss = method.loss(split.x, split.y)
    norms = list(method.shared.values())
    assert len(norms) == 10
    plain = dict(zip(norms, torch.autograd.grad(loss, norms, retain_graph=True), strict=True))
    pulled = method.gradients(loss)
    for p, importance, last in zip(norms, method.importance, method.last, strict=True):
        kappa = torch.minimum(1e4 * importance, 1 / method.lr)
        torch.testing.assert_close(pulled[p], plain[p] + kappa * (p.detach() - last))
    assert any(not torch.equal(pulled[p], plain[p]) for p in norms)
