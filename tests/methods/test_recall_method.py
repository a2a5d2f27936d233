"""Recall: W·M_t·M_tᵀ + U_t·V_t gives an old task's outputs for every input, whatever was learnt since."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from remnant.data import Split
from remnant.methods import METHODS
from remnant.methods.recall import Recall
from remnant.models import build

EPOCHS = 3


def tasks(count: int = 3) -> list[Split]:
    """Tasks whose inputs lie in different directions, so that they can be told apart."""
    g = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        x = torch.randn(60, 4, generator=g) @ torch.linalg.qr(torch.randn(20, 4, generator=g))[0].mT
        found.append(Split.of(x, (x.sum(1) > 0).long()))
    return found


def learner(*, bias: bool = False, heads: int | tuple[int, ...] = 2, **options: object) -> Recall:
    torch.manual_seed(1)
    network = build("mlp", input_shape=(20,), classes=heads, seed=0, hidden=[30, 30], bias=bias)
    method = METHODS["remnant-recall"](network, lr=0.1, samples=60, **options)
    assert isinstance(method, Recall)
    return method


def learn(method: Recall, task: int, split: Split, epochs: int = EPOCHS) -> None:
    method.start(task)
    for epoch in range(epochs):
        method.lr.fill_(0.1)
        method.on_epoch_start(epoch, epochs, 6)
        for part in method.order(split, 10).split(10):
            method.step(split.x[part], split.y[part])
        method.on_epoch_end()
    method.finish(task, split)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("own_rank", [0, 3])
def test_an_old_task_answers_as_before_for_every_input(own_rank: int, bias: bool) -> None:
    method, streams = learner(own_rank=own_rank, bias=bias, threshold=0.9, named_by_inputs=False), tasks()
    learn(method, 0, streams[0])
    anything = torch.randn(50, 20)
    before = method.logits(anything, 0)
    for task in (1, 2):
        learn(method, task, streams[task])
    assert (method.logits(anything, 0) - before).norm() < 1e-5 * before.norm()
    assert (method.network(anything, 0) - before).norm() > 0.1 * before.norm()  # the shared weights did move


@pytest.mark.parametrize("bias", [False, True])
def test_a_task_s_weights_are_those_of_the_formula(bias: bool) -> None:
    method, streams = learner(own_rank=3, bias=bias, threshold=0.9), tasks()
    for task in range(3):
        learn(method, task, streams[task])
    parameters = dict(method.network.named_parameters())
    for task in range(3):
        weights = method.network_of(task)
        for name in ("hidden.0", "hidden.1", "head"):
            M = method.memory.subspaces[name].basis.double()[:, : sum(method.ranks()[name][: task + 1])]
            W = parameters[f"{name}.weight"].detach().double()
            if bias:
                W = torch.cat([W, parameters[f"{name}.bias"].detach().double()[:, None]], dim=1)
            expected = W @ M @ M.mT
            U, V = method.u[f"{task} {name}"].double(), method.v[f"{task} {name}"].double()
            expected[:, : V.shape[1]] += U @ V
            actual = [weights[f"{name}.weight"], *([weights[f"{name}.bias"][:, None]] if bias else [])]
            torch.testing.assert_close(torch.cat(actual, dim=1).double(), expected, atol=1e-5, rtol=1e-4)


def test_without_its_own_parts_it_trains_as_gpm_does() -> None:
    streams = tasks(2)
    method = learner(retrain=0, anneal=False)
    torch.manual_seed(1)
    network = build("mlp", input_shape=(20,), classes=2, seed=0, hidden=[30, 30])
    gpm = METHODS["gpm"](network, lr=0.1, samples=60)
    for task in range(2):
        for each in (method, gpm):
            torch.manual_seed(task)
            learn(each, task, streams[task])  # type: ignore[arg-type]
    for ours, theirs in zip(method.network.parameters(), gpm.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def changed(method: Recall, before: Tensor) -> Tensor:
    return method.network.get_parameter("hidden.1.weight").detach().double() - before


def test_retraining_moves_only_what_is_new_with_the_task() -> None:
    method, streams = learner(retrain=2, threshold=0.9), tasks(2)
    learn(method, 0, streams[0])
    method.start(1)
    method.on_epoch_start(1, EPOCHS, 6)
    order = method.order(streams[1], 10)
    assert method.rest
    before = method.network.get_parameter("hidden.1.weight").detach().double().clone()
    for part in order.split(10):
        method.step(streams[1].x[part], streams[1].y[part])
    moved, (old, _) = changed(method, before), method.ranks()["hidden.1"]
    M = method.memory.subspaces["hidden.1"].basis.double()
    assert moved.norm() > 0
    assert (moved @ M[:, :old]).norm() < 1e-6 * before.norm() < 1e-3 * moved.norm()  # no earlier task moves
    assert (moved - moved @ M @ M.mT).norm() < 1e-6 * before.norm()  # the truncated network stays truncated
    method.finish(1, streams[1])
    assert not method.rest
    assert method.memory.verify().worst < 1e-4


@pytest.mark.parametrize("rows", [3, 40])  # fewer and more than a layer has outputs
@pytest.mark.parametrize("phase", ["training", "retraining"])
@pytest.mark.parametrize(("own_rank", "bias"), [(0, False), (2, False), (2, True)])
def test_a_step_is_that_of_the_formula(own_rank: int, bias: bool, phase: str, rows: int) -> None:
    """W ← W − lr·∇W·P, where P is written out and ∇W is of the network with the weights W + U·V."""
    torch.manual_seed(1)
    network = build("lenet", input_shape=(1, 8, 8), classes=(2, 2), seed=0, width=4, bias=bias)
    method = METHODS["remnant-recall"](network, lr=0.1, samples=20, threshold=0.9, own_rank=own_rank, retrain=2)
    assert isinstance(method, Recall)
    streams = [Split.of(torch.randn(40, 1, 8, 8), torch.randint(0, 2, (40,))) for _ in range(2)]
    learn(method, 0, streams[0])
    method.start(1)
    x, y = streams[1].x[:rows], streams[1].y[:rows]
    method.step(x, y)  # U is no longer 0
    if phase == "retraining":
        method.on_epoch_start(1, EPOCHS, 4)
        method.order(streams[1], 10)
    assert bool(method.rest) == (phase == "retraining")

    W = {name: p.detach().clone().requires_grad_() for name, p in network.named_parameters()}
    own = {
        name: [part.detach().clone().requires_grad_() for part in pair] for name, pair in method.low_rank_parts.items()
    }
    effective = dict(W)
    for name, (u, v) in own.items():
        effective[f"{name}.weight"] = W[f"{name}.weight"] + (u @ v).view_as(W[f"{name}.weight"])
    loss = F.cross_entropy(functional_call(network, effective, (x, 1)), y)
    loss.backward()
    for name, layer in method.layers.items():
        M = method.memory.subspaces[name].basis
        new = M[:, sum(method.ranks()[name][:1]) :]
        P = new @ new.mT if method.rest else torch.eye(len(M)) - M @ M.mT
        parts = [W[f"{name}.{kind}"] for kind in ("weight", "bias")[: 1 + bias]]
        gradient = (
            torch.cat([part.grad.flatten(1) if part.ndim > 1 else part.grad[:, None] for part in parts], dim=1) @ P
        )
        assert gradient.norm() > 0 or not new.numel()
        for part, step in zip(parts, layer.tensors(gradient), strict=True):
            part.grad = step
    assert torch.allclose(method.step(x, y), loss.detach())
    for name, p in network.named_parameters():
        expected = W[name] if W[name].grad is None else W[name] - method.lr * W[name].grad
        torch.testing.assert_close(p, expected, atol=1e-6, rtol=1e-5)
    for name, pair in method.low_rank_parts.items():
        for part, before in zip(pair, own[name], strict=True):
            torch.testing.assert_close(part, before - method.lr * before.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_own_parts_can_start_where_the_memory_blocks_the_task(bias: bool) -> None:
    method, streams = learner(own_rank=2, own_start="memory", bias=bias, heads=(2, 2)), tasks(2)
    learn(method, 0, streams[0])
    assert not method.u  # all directions were free
    anything = torch.randn(50, 20)
    before = method.logits(anything, 0)
    method.start(1)
    method.on_epoch_start(0, EPOCHS, 6)
    both = Split.of(streams[1].x + streams[0].x, streams[1].y)
    method.order(both, 10)
    M, (u, v) = method.memory.subspaces["hidden.0"].basis, method.low_rank_parts["hidden.0"]
    x = torch.cat([both.x, torch.ones(60, 1)], dim=1) if bias else both.x
    inside = torch.linalg.svd(x @ M @ M.mT, full_matrices=False)
    assert not u.any()
    for row, direction in zip(v.detach(), inside.Vh[:2, :20], strict=True):
        torch.testing.assert_close((row @ direction).abs(), row.norm() * direction.norm())
    learn(method, 1, both)
    assert method.u
    assert (method.logits(anything, 0) - before).norm() < 1e-5 * before.norm()


@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
def test_an_old_task_has_its_norms_back(name: str, norm: str) -> None:
    torch.manual_seed(1)
    network = build(name, input_shape=(3, 32, 32), classes=(2, 2), seed=0, width=2, norm=norm)
    own = {"own_rank": 2, "own_start": "memory", "task_norms": "own"}
    method = METHODS["remnant-recall"](network, lr=0.1, samples=20, threshold=0.9, **own)
    assert isinstance(method, Recall)
    streams = [Split.of(torch.randn(20, 3, 32, 32), torch.arange(20) % 2) for _ in range(2)]
    learn(method, 0, streams[0], epochs=2)
    network.eval()
    before = method.logits(streams[1].x, 0)
    network.train()
    learn(method, 1, streams[1], epochs=2)
    network.eval()
    assert (method.logits(streams[1].x, 0) - before).norm() < 1e-4 * before.norm()


def test_inputs_name_their_task() -> None:
    method, streams = learner(own_rank=3), tasks()
    for task, split in enumerate(streams):
        learn(method, task, split, epochs=6)
    mixed = torch.cat([split.x for split in streams])
    told = torch.cat([method.answer(split.x, task) for task, split in enumerate(streams)])
    torch.testing.assert_close(method.logits(mixed, 0), told, atol=1e-5, rtol=1e-4)  # the task given is not looked at


def test_a_head_per_task_needs_no_naming() -> None:
    method = learner(heads=(2, 2), own_rank=2)
    for task, split in enumerate(tasks(2)):
        learn(method, task, split)
    assert method.logits(torch.randn(5, 20), 1).shape == (5, 2)
    assert method.nbytes > sum(part.nbytes for part in method.u.values())
    # r·(outputs + inputs) numbers per task in both layers; heads are free
    assert method.capacity == 1 + 2 * 2 * (20 + 30 + 30 + 30) / sum(p.numel() for p in method.network.parameters())


def test_another_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match="plain SGD"):
        learner().use_optimizer("adam")
