"""OGD: what is stored is orthonormal and spans the logits' gradients; steps are orthogonal to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from small_nets import smaller_data as data
from small_nets import smaller_network as network
from torch import Tensor

from remnant.data import Split
from remnant.evaluation import backward_transfer
from remnant.experiments.execute import Plan, run
from remnant.experiments.settings import resolve
from remnant.memory import ConsolidationError
from remnant.methods.ogd import OGD, orthonormal
from remnant.models import Network


def learn(method: OGD, task: int, split: Split, epochs: int = 1) -> None:
    method.start(task)
    for _ in range(epochs):
        for part in torch.arange(len(split)).split(6):
            method.step(split.x[part], split.y[part])


def position(method: OGD) -> Tensor:
    return torch.cat([p.detach().flatten() for p in method.protected]).clone()


# --- the basis --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 6), st.integers(1, 9), st.integers(0, 3), st.integers(0, 2**31))
def test_the_basis_spans_what_is_new_and_is_orthonormal(old: int, new: int, copies: int, seed: int) -> None:
    """Rows that repeat others, or lie among the old, add nothing."""
    g = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(40, old, generator=g)).Q.mT.contiguous()
    rows = torch.randn(new, 40, generator=g) * torch.logspace(-2, 2, new)[:, None]
    inside = torch.randn(copies, old + new, generator=g) @ torch.cat([basis, rows])
    both = torch.cat([basis, orthonormal(torch.cat([rows, inside]), basis)])
    assert len(both) == old + new
    assert both.dtype == torch.float32
    torch.testing.assert_close(both @ both.mT, torch.eye(old + new), rtol=0, atol=1e-6)
    left = rows - (rows @ both.mT) @ both
    assert left.norm() < 1e-5 * rows.norm()


def test_nothing_new_is_added_for_gradients_that_are_zero() -> None:
    assert orthonormal(torch.zeros(3, 5), torch.zeros(0, 5)).shape == (0, 5)


class SlowOGD:
    """Farajtabar et al.'s algorithm as printed: one example, one gradient, one step of Gram–Schmidt at a time."""

    def __init__(self, net: Network, lr: float) -> None:
        self.net, self.lr = net, lr
        self.body: list[Tensor] = [p for name, p in net.named_parameters() if not name.startswith("heads.")]
        self.S: list[Tensor] = []

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        head: list[Tensor] = list(self.net.head_of(task).parameters()) if self.net.multi_head else []
        gradients = torch.autograd.grad(F.cross_entropy(self.net(x, task), y), [*self.body, *head])
        g = torch.cat([gradient.flatten() for gradient in gradients[: len(self.body)]])
        for v in self.S:
            g = g - v * (v @ g)
        with torch.no_grad():
            for p, part in zip(self.body, g.split([p.numel() for p in self.body]), strict=True):
                p -= self.lr * part.view_as(p)
            for p, gradient in zip(head, gradients[len(self.body) :], strict=True):
                p -= self.lr * gradient

    def finish(self, x: Tensor, y: Tensor, task: int) -> None:
        for i in range(len(y)):
            logit = self.net(x[i : i + 1], task)[0, y[i]]
            u = torch.cat([g.flatten() for g in torch.autograd.grad(logit, self.body)])
            for _ in range(2):
                for v in self.S:
                    u = u - v * (v @ u)
            self.S.append(u / u.norm())


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("classes", [3, (3, 3, 3)], ids=["one head", "heads"])
def test_it_is_the_algorithm_as_printed(classes: Any, bias: bool) -> None:
    ours, theirs = network(classes, bias=bias).double(), network(classes, bias=bias).double()
    method, slow = OGD(ours, lr=0.125, samples=1000), SlowOGD(theirs, 0.125)
    for task in range(3):
        split = data(seed=task, count=12, dtype=torch.float64)
        method.start(task)
        for part in torch.arange(12).split(4):
            method.step(split.x[part], split.y[part])
            slow.step(split.x[part], split.y[part], task)
        method.finish(task, split)
        slow.finish(split.x, split.y, task)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
        S = torch.stack(slow.S)
        torch.testing.assert_close(method.Q.mT @ method.Q, S.mT @ S, rtol=0, atol=1e-7)


# --- the method -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"), [("mlp", {}), ("alexnet", {"norm": "running"}), ("alexnet", {"norm": "batch"})]
)
def test_in_float32_the_stored_stay_orthonormal_and_steps_orthogonal_to_them(kind: str, options: Any) -> None:
    method = OGD(network((3, 3, 3), kind, **options), lr=0.05, samples=20)
    shape = method.network.input_shape
    for task in range(3):
        before = position(method)
        learn(method, task, data(shape, seed=task), epochs=3)
        moved = position(method) - before
        assert moved.norm() > 1e-3
        assert (method.Q @ moved).norm() < 1e-5 * moved.norm() + 1e-6
        method.finish(task, data(shape, seed=task))
        gram = method.Q.double() @ method.Q.double().mT
        torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.float64), rtol=0, atol=1e-6)
    assert len(method.Q) == 60
    assert method.nbytes == 60 * sum(p.numel() for p in method.protected) * 4


def test_a_small_step_leaves_the_stored_logits_where_they_are() -> None:
    """To first order: a tenth of the step, a hundredth of the change."""
    changes = []
    for lr in (1e-2, 1e-3):
        method = OGD(network().double(), lr=0.1, samples=1000)
        first, second = (data(seed=seed, count=12, dtype=torch.float64) for seed in (0, 1))
        learn(method, 0, first)
        method.finish(0, first)
        before = method.logits(first.x, 0).gather(1, first.y[:, None])
        method.start(1)
        method.lr.fill_(lr)
        method.step(second.x, second.y)
        changes.append((method.logits(first.x, 0).gather(1, first.y[:, None]) - before).norm().item())
    assert changes[1] < 0.02 * changes[0]


def test_a_row_is_the_gradient_of_an_examples_logit_in_the_batch_it_came_with() -> None:
    """Against differences: where a norm goes by the batch, a weight also moves the logit through the statistics."""
    method = OGD(network((3, 3), "alexnet", norm="batch").double(), lr=0.1, samples=5)
    split = data((3, 19, 19), count=5, dtype=torch.float64)
    rows = method._logit_gradients(split.x, split.y, 1)
    weight = method.protected[0]
    logits = []
    for by in (1e-5, -1e-5):
        with torch.no_grad():
            weight[0, 0, 0, 0] += by
            logits.append(method.logits(split.x, 1).gather(1, split.y[:, None])[:, 0])
            weight[0, 0, 0, 0] -= by
    torch.testing.assert_close(rows[:, 0], (logits[0] - logits[1]) / 2e-5, rtol=1e-4, atol=1e-7)


def test_norms_are_learnt_with_the_first_task_and_then_hold_still() -> None:
    method = OGD(network((3, 3), "alexnet"), lr=0.1, samples=5)
    states = [{n: t.clone() for n, t in method.network.state_dict().items() if n.startswith("norm")}]
    for task in range(2):
        learn(method, task, data((3, 19, 19), seed=task))
        method.finish(task, data((3, 19, 19), seed=task))
        states.append({n: t.clone() for n, t in method.network.state_dict().items() if n.startswith("norm")})
    initial, first, second = states
    assert not any(torch.equal(initial[name], first[name]) for name in first if name.endswith(("weight", "mean")))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_diverged_network_is_told_of() -> None:
    method = OGD(network(), lr=0.1, samples=5)
    with torch.no_grad():
        method.protected[0].fill_(torch.nan)
    with pytest.raises(ConsolidationError, match="NaN or inf: did training diverge"):
        method.finish(0, data())
    assert len(method.Q) == 0


def test_a_run_forgets_less_than_without_it(tmp_path: Path) -> None:
    few = ("stream.tasks=2", "training.epochs=3", "network.hidden=[40, 40]")
    transfer, kept = {}, {}
    for method in ("finetune", "ogd"):
        (folder,) = run(Plan(resolve("permuted-digits", method, few), (0,), tmp_path, "cpu"), lambda progress: None)
        matrix, result = folder.matrix(), folder.result()
        assert matrix is not None
        assert result is not None
        transfer[method], kept[method] = backward_transfer(matrix), result["memory_bytes"]
    assert transfer["ogd"] > transfer["finetune"] + 0.02
    assert kept == {"finetune": 0, "ogd": 400 * (64 + 40 + 10) * 40 * 4}
