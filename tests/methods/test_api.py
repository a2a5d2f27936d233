"""API with the widened inputs written out, and old tasks that do not see what later ones add."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_nets import SHAPES, beside_gpm, network, train
from torch import Tensor

from remnant.data import Split
from remnant.methods.api import API
from remnant.models import Network
from small_options import announced

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")
LR, EPSILON, WIDEN, AIM, ROOM = 0.125, 0.8, 6.0, 0.9, 5


def data(kind: str = "mlp", seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(40, *SHAPES[kind], generator=g, dtype=torch.float64)
    if kind == "mlp":
        x = x * torch.linspace(1, 0.2, 12, dtype=torch.float64).roll(3 * seed)
    return Split.of(x, torch.randint(0, 3, (40,), generator=g))


def api(net: Network, kind: str = "mlp", **options: Any) -> API:
    given = {"lr": LR, "threshold": {"value": EPSILON}, "samples": 1000, "measure_samples": 1000}
    given |= {"widen": WIDEN, "aim": AIM, "room": ROOM}
    return announced(API(net, **{**given, **options}), *(data(kind, task) for task in range(3)))  # type: ignore[arg-type]


class SlowAPI:
    """Lists of B and V that grow, [W | V] for [h | B·h], and numpy's SVDs, for an MLP with heads."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.W = [layer.weight.detach().clone().requires_grad_() for layer in net.hidden]  # [W | V]
        self.B: list[list[Tensor]] = [[] for _ in self.W]  # layer → task → rows
        self.M = [np.zeros((W.shape[1], 0)) for W in self.W]

    def inputs(self, x: Tensor, task: int) -> list[Tensor]:
        """The widened inputs of all layers, and the features."""
        found = []
        for W, B in zip(self.W, self.B, strict=True):
            h = torch.cat([x, *(x @ rows.T for rows in B[: task + 1])], dim=1)
            found.append(h)
            x = F.relu(h @ W[:, : h.shape[1]].T)
        return [*found, x]

    def loss(self, x: Tensor, y: Tensor, task: int) -> Tensor:
        return F.cross_entropy(self.net.heads[task](self.inputs(x, task)[-1]), y)

    def start(self, x: Tensor, y: Tensor, task: int) -> None:
        gradients = torch.autograd.grad(self.loss(x, y, task), self.W)
        seen = self.inputs(x, task)
        for n, g in enumerate(gradients):
            rows = torch.zeros(0, self.net.hidden[n].in_features).double()
            if task:
                left = g.numpy() - g.numpy() @ self.M[n] @ self.M[n].T
                wanted = int(np.floor(WIDEN * (AIM - np.linalg.norm(left) / float(g.norm())) + 0.5))
                own = seen[n][:, : rows.shape[1]].detach().numpy()
                count = max(0, min(wanted, ROOM - sum(map(len, self.B[n]))))
                rows = torch.from_numpy(np.linalg.svd(own, full_matrices=False)[2][:count].copy())
            self.B[n].append(rows.requires_grad_())
            self.W[n] = torch.cat([self.W[n].detach(), torch.zeros(len(g), len(rows)).double()], dim=1).requires_grad_()
            self.M[n] = np.vstack([self.M[n], np.zeros((len(rows), self.M[n].shape[1]))])

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        own = [B[task] for B in self.B]
        trained = [*self.W, *own, self.net.heads[task].weight]
        gradients = torch.autograd.grad(self.loss(x, y, task), trained)
        with torch.no_grad():
            for n, (p, g) in enumerate(zip(trained, gradients, strict=True)):
                if n < len(self.W):
                    M = torch.from_numpy(self.M[n])
                    g = g - g @ M @ M.T
                p -= LR * g

    def finish(self, x: Tensor, task: int) -> None:
        for n, h in enumerate(self.inputs(x, task)[:-1]):
            R, M = h.detach().numpy().T, self.M[n]
            U, sigma, _ = np.linalg.svd(R - M @ M.T @ R, full_matrices=False)
            total = (R**2).sum()
            captured = total - (sigma**2).sum()
            count = (
                int((captured + np.cumsum(sigma**2) < EPSILON * total).sum()) + 1 if captured < EPSILON * total else 0
            )
            self.M[n] = np.hstack([M, U[:, :count]])


def test_it_is_the_algorithm_written_out() -> None:
    ours, theirs = network(), network()
    method, slow = api(ours), SlowAPI(theirs)
    for task in range(3):
        split = data(seed=task)
        method.start(task)
        slow.start(split.x, split.y, task)
        assert [widths[-1] for widths in method.widths.values()] == [sum(map(len, B)) for B in slow.B]
        for part in torch.arange(40).split(8):
            method.step(split.x[part], split.y[part])
            slow.step(split.x[part], split.y[part], task)
        method.finish(task, split)
        slow.finish(split.x, task)
        for old in range(task + 1):
            expected = theirs.heads[old](slow.inputs(split.x, old)[-1])
            torch.testing.assert_close(method.logits(split.x, old), expected, rtol=1e-6, atol=1e-8)
        assert [sum(added) for added in method.ranks().values()] == [M.shape[1] for M in slow.M]
    widths = [sum(map(len, B)) for B in slow.B]
    assert min(widths) > 0
    size = sum(p.numel() for p in theirs.parameters())
    assert method.capacity == 1 + (widths[0] * (12 + 10) + widths[1] * (10 + 9)) / size


@pytest.mark.parametrize("kind", SHAPES)
def test_what_later_tasks_add_changes_nothing_for_earlier_ones(kind: str) -> None:
    method = api(network(kind), kind, aim=1.0, widen=3.0)
    x = data(kind, 9).x
    for task in range(2):
        method.start(task)
        train(method, data(kind, task))
        method.finish(task, data(kind, task))
    method.network.eval()
    before = [method.logits(x, task) for task in range(2)]
    method.start(2)
    method.network.eval()
    assert any(widths[2] > widths[1] > 0 for widths in method.widths.values())
    assert all(torch.equal(method.logits(x, task), before[task]) for task in range(2))
    rows = {name: B[: method.widths[name][1]].clone() for name, B in method.rows.items()}
    train(method, data(kind, 2))
    for name, B in method.rows.items():
        assert torch.equal(B[: len(rows[name])], rows[name])
        assert not B[method.widths[name][2] :].any()


def test_with_enough_gradient_it_is_gpm() -> None:
    methods = list(beside_gpm(API, [data(seed=task) for task in range(2)], aim=0.0))
    assert [method.capacity for method in methods] == [1, 1]
    ends = [method.logits(data(seed=1).x, 1) for method in methods]
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)
