"""ROGO with S and Q written out, the folded Q, and the learning rate that starts again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_nets import beside_gpm, data, network, train
from torch import Tensor

from remnant.data import Task
from remnant.methods.rogo import ROGO
from remnant.models import Network
from remnant.training import Schedule, Trainer, TrainingState, run_to_completion
from small_options import announced

pytestmark = pytest.mark.filterwarnings(
    "ignore:These layers are full", "ignore:Old outputs moved by .* for task 0, and"
)
LR, EPSILON, ENERGY, ALIKE, STIFFNESS = 0.125, 0.8, 0.9, 0.7, 0.5


def rogo(net: Network, kind: str = "mlp", **options: Any) -> ROGO:
    given = {"lr": LR, "threshold": {"value": EPSILON}, "samples": 1000, "relax_samples": 1000, "relax_at": LR}
    given |= {"relax_energy": ENERGY, "alike": ALIKE, "stiffness": STIFFNESS}
    return announced(ROGO(net, **{**given, **options}), *(data(kind, task) for task in range(3)))  # type: ignore[arg-type]


def learn(method: ROGO, tasks: int, kind: str = "mlp") -> None:
    for task in range(tasks):
        method.start(task)
        for _ in range(3):
            train(method, data(kind, task))
            method.on_epoch_end()
        if task < tasks - 1:
            method.finish(task, data(kind, task))


class SlowROGO:
    """S as a list of columns, Q as a matrix of its size, and numpy's SVDs."""

    def __init__(self, net: Any, *, by_gradient: bool) -> None:
        self.net, self.by_gradient = net, by_gradient
        self.M = [np.zeros((layer.in_features, 0)) for layer in net.hidden]

    def start(self) -> None:
        self.inside: list[list[int]] = [[] for _ in self.M]
        self.Q = [torch.zeros(0, 0).double() for _ in self.M]

    def weights(self) -> list[Tensor]:
        found = []
        for layer, M, columns, Q in zip(self.net.hidden, self.M, self.inside, self.Q, strict=True):
            S = torch.from_numpy(M[:, columns])
            found.append(layer.weight + layer.weight @ S @ (Q - torch.eye(len(Q)).double()) @ S.T)
        return found

    def inputs(self, x: Tensor) -> list[Tensor]:
        found = [x]
        for W in self.weights():
            found.append(F.relu(found[-1] @ W.T))
        return found

    def loss(self, x: Tensor, y: Tensor, task: int) -> Tensor:
        return F.cross_entropy(self.net.heads[task](self.inputs(x)[-1]), y)

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        own = [layer.weight for layer in self.net.hidden]
        Qs = [Q.requires_grad_() for Q in self.Q]
        penalty = sum((Q - torch.eye(len(Q)).double()).square().sum() for Q in Qs)
        loss = self.loss(x, y, task) + STIFFNESS * penalty
        gradients = torch.autograd.grad(loss, [*own, *Qs, self.net.heads[task].weight])
        with torch.no_grad():
            for n, (p, g) in enumerate(zip([*own, *Qs, self.net.heads[task].weight], gradients, strict=True)):
                if n < len(own):
                    M = torch.from_numpy(self.M[n])
                    g = g - g @ M @ M.T
                p -= LR * g

    def relax(self, x: Tensor, y: Tensor, task: int) -> None:
        gradients = torch.autograd.grad(self.loss(x, y, task), [layer.weight for layer in self.net.hidden])
        for n, X in enumerate(gradients if self.by_gradient else self.inputs(x)[:-1]):
            U, sigma, _ = np.linalg.svd(X.detach().numpy().T, full_matrices=False)
            U = U[:, : int((np.cumsum(sigma**2) < ENERGY * (sigma**2).sum()).sum()) + 1]
            new = [i for i, u in enumerate(self.M[n].T) if np.linalg.norm(U @ U.T @ u) >= ALIKE]
            old, before = self.inside[n], self.Q[n].detach()
            self.inside[n] = [*old, *(i for i in new if i not in old)]
            Q = torch.eye(len(self.inside[n])).double()
            Q[: len(old), : len(old)] = before
            self.Q[n] = Q

    @torch.no_grad()
    def finish(self, x: Tensor) -> None:
        inputs, weights = self.inputs(x), self.weights()
        for n, layer in enumerate(self.net.hidden):
            layer.weight.copy_(weights[n])
            R, M = inputs[n].numpy().T, self.M[n]
            U, sigma, _ = np.linalg.svd(R - M @ M.T @ R, full_matrices=False)
            total = (R**2).sum()
            captured = total - (sigma**2).sum()
            count = (
                int((captured + np.cumsum(sigma**2) < EPSILON * total).sum()) + 1 if captured < EPSILON * total else 0
            )
            self.M[n] = np.hstack([M, U[:, :count]])


@pytest.mark.parametrize("by_gradient", [False, True])
def test_it_is_the_algorithm_written_out(by_gradient: bool) -> None:
    ours, theirs = network(), network()
    method, slow = rogo(ours, by_gradient=by_gradient), SlowROGO(theirs, by_gradient=by_gradient)
    relaxed = 0
    for task in range(3):
        split = data(seed=task)
        method.start(task)
        slow.start()
        for epoch in range(3):
            for part in torch.arange(40).split(8):
                method.step(split.x[part], split.y[part])
                slow.step(split.x[part], split.y[part], task)
            assert method.on_epoch_end() == (task > 0 and epoch < 2)
            if task and epoch < 2:
                slow.relax(split.x, split.y, task)
        relaxed += sum(map(len, slow.inside))
        assert sum(int(inside.sum()) for inside in method.relaxed.values()) == sum(map(len, slow.inside))
        method.finish(task, split)
        slow.finish(split.x)
        for n, layer in enumerate(theirs.hidden):  # type: ignore[arg-type]
            torch.testing.assert_close(ours.hidden[n].weight, layer.weight, rtol=1e-6, atol=1e-8)  # type: ignore[index]
    assert relaxed >= 4


@pytest.mark.parametrize(("kind", "bias"), [("mlp", True), ("alexnet", False)])
def test_the_folded_network_is_the_unfolded_one(kind: str, bias: bool) -> None:
    method = rogo(network(kind, bias=bias), kind, alike=0.3, stiffness=0.01)
    learn(method, 2, kind)
    method.network.eval()
    x = data(kind, 9).x
    with torch.no_grad():
        unfolded, before = method.logits(x, 1), method.network(x, 1)
        method.finish(1, data(kind, 1))
        torch.testing.assert_close(method.network(x, 1), unfolded, rtol=1e-8, atol=1e-10)
        assert not torch.allclose(before, unfolded, atol=1e-3)  # Q is not I
        torch.testing.assert_close(method.logits(x, 1), unfolded, rtol=1e-8, atol=1e-10)
    assert method.capacity == 1
    assert not method.scales
    assert method.nbytes == method.memory.report().nbytes
    assert method.memory.verify(tolerance=1e-9).worst < 1e-9


def test_without_relaxing_it_is_gpm() -> None:
    methods = beside_gpm(ROGO, [data(seed=task) for task in range(2)], most=0)
    ends = [[p for name, p in method.network.named_parameters() if "scales" not in name] for method in methods]
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_the_learning_rate_starts_again_twice() -> None:
    method = rogo(network(), relax_at=0.05)
    split, rates = data(), list[float]()
    schedule = Schedule(lr=LR, epochs=40, batch=8, patience=1, factor=2, lr_min=0.02)
    for number in range(2):
        task = Task("", 3, split, data(seed=7), split)
        method.start(number)
        state = TrainingState()
        rates.clear()
        run_to_completion(Trainer(schedule).fit(method, number, task, state, lambda done, state: rates.append(done.lr)))
        method.finish(number, split)
        rises = sum(later > earlier for earlier, later in pairwise(rates))
        assert rises == (0 if number == 0 else 2)
        assert state.over
        assert min(rates) < 0.05
