"""APD's loss and groups against slow versions, what it counts, and how well the weights of old tasks stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.methods.apd import APD, Retained, k_means, regrouped
from remnant.models import Network, build


def network(tasks: int = 3, **options: Any) -> Network:
    return build("lenet", input_shape=(3, 8, 8), classes=[3] * tasks, seed=1, width=2, **options).double()


def data(seed: int = 0, count: int = 24) -> Split:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    means = torch.randn(3, 3, 8, 8, generator=g, dtype=torch.float64)
    return Split.of(torch.randn(count, 3, 8, 8, generator=g, dtype=torch.float64) + means[y], y)


def train(method: APD, task: int, epochs: int = 20) -> Split:
    split = data(task)
    method.start(task)
    for _ in range(epochs):
        method.step(split.x, split.y)
    return split


def weights(method: APD, task: int) -> dict[str, Tensor]:
    """θ of one task, unpruned."""
    return {name: each.weights()[task].detach().clone() for name, each in method.decomposed.items()}


@pytest.mark.parametrize("bias", [False, True])
def test_the_loss_is_the_sum_of_its_terms(bias: bool) -> None:
    method = APD(network(bias=bias), lr=0.01, sparsity=0.01, decay=0.1, retention=3.0, group_every=0)
    stars: dict[int, dict[str, Tensor]] = {}
    for task in range(3):
        train(method, task, epochs=2)
        split = data(9)
        own = build("lenet", input_shape=(3, 8, 8), classes=[3] * 3, seed=2, width=2, bias=bias).double()
        own.load_state_dict({**weights(method, task), **_heads(method.network)})
        expected = F.cross_entropy(own(split.x, task), split.y)
        for name, each in method.decomposed.items():
            for j in range(task + 1):
                expected = expected + 0.01 * each.tau[j].abs().sum()
            expected = expected + 0.1 / 2 * (each.tau[task] ** 2).sum() + 0.1 / 2 * (each.v[task] ** 2).sum()
            expected = expected + (0.1 / 2 * (each.shared**2).sum() if task == 0 else 0)
            for j in range(task):
                expected = expected + 3.0 / 2 * ((weights(method, j)[name] - stars[j][name]) ** 2).sum()
        assert method.loss(split.x, split.y).item() == pytest.approx(expected.item(), rel=1e-10)
        method.finish(task, split)
        stars = {j: weights(method, j) for j in range(task + 1)}


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2, 2)])
def test_the_gradient_of_the_retained_terms_is_autograds(shape: tuple[int, ...]) -> None:
    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, dtype=torch.float64, requires_grad=True)

    shared, tau, v = random(*shape), random(5, *shape), random(5, 4, *(1 for _ in shape[1:]))
    before = random(5, *shape).detach()
    assert torch.autograd.gradcheck(lambda w, t, u: Retained.apply(w, t, u, before, 0.3, 2.0), (shared, tau, v))


def _heads(net: Network) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in net.state_dict().items() if name.startswith("heads.")}


def test_a_tasks_own_part_starts_at_the_shared_weights_and_later_tasks_stay_untouched() -> None:
    method = APD(network(), lr=0.01)
    train(method, 0)
    method.finish(0, data())
    method.start(1)
    for each in method.decomposed.values():
        assert torch.equal(each.tau[1], each.shared)
        assert not each.tau[2].any()
        assert not each.v[2].any()


def test_old_weights_agree_within_the_penalty() -> None:
    """At the start of a task the penalty is 0, so training cannot end with more of it than the loss it began with."""
    drift = {}
    for retention in (0.0, 100.0):
        method = APD(network(), lr=0.003, retention=retention, lr_decay=1.0)
        train(method, 0)
        method.finish(0, data())
        before, split = weights(method, 0), data(1)
        method.start(1)
        first = method.loss(split.x, split.y).item()
        for _ in range(60):
            method.step(split.x, split.y)
        now = weights(method, 0)
        drift[retention] = sum((now[name] - before[name]).square().sum().item() for name in now)
        assert retention / 2 * drift[retention] < first
        assert not torch.equal(method.decomposed["fc1.weight"].shared, before["fc1.weight"])
    assert drift[100.0] < 0.1 * drift[0.0]


def test_entries_up_to_the_price_are_zero_at_test_time_and_are_not_counted() -> None:
    method = APD(network(), lr=0.01, sparsity=0.05, group_every=0)
    split = train(method, 0)
    answer = method.logits(split.x, 0)
    assert any(((each.tau[0].abs() <= 0.05) & (each.tau[0] != 0)).any() for each in method.decomposed.values())
    method.finish(0, split)
    assert torch.equal(method.logits(split.x, 0), answer)
    base = sum(p.numel() for p in network().parameters())
    units = 2 + 5 + 80 + 50
    own = sum(int((each.tau[0].abs() > 0.05).sum()) for each in method.decomposed.values())
    assert 0 < own < 0.9 * base
    assert method.capacity == pytest.approx(1 + (own + units) / base)
    assert method.nbytes == (own + units) * 8


def test_groups_share_what_is_alike_and_nothing_moves_farther_than_the_range() -> None:
    tau = torch.tensor([[1.0, 0.0, 5.0], [1.25, 0.0, 3.0], [-9.0, 0.0, 0.0]])
    group, before = torch.zeros(3, 3), tau.clone()
    assert regrouped(tau, group, groups=2, group_range=0.5) == 1
    assert torch.equal(tau, torch.tensor([[0.0, 0.0, 5.0], [0.0, 0.0, 3.0], [-9.0, 0.0, 0.0]]))
    assert torch.equal(group, torch.tensor([[1.125, 0.0, 0.0], [1.125, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert (tau + group - before).abs().max() <= 0.5
    whole = tau + group
    assert regrouped(tau, group, groups=2, group_range=0.0) == 1  # the group's value is alike without any range
    assert torch.equal(tau + group, whole)


def test_k_means_finds_groups_that_are_apart() -> None:
    g = torch.Generator().manual_seed(0)
    true = torch.tensor([0, 1, 2, 0, 1, 2, 2, 1])
    points = torch.randn(3, 40, generator=g)[true] + 0.1 * torch.randn(8, 40, generator=g)
    found = k_means(points, 3)
    assert torch.equal(found[:, None] == found, true[:, None] == true)


def test_tasks_are_grouped_after_every_so_many() -> None:
    method = APD(network(), lr=0.01, sparsity=1e-3, group_every=3, group_range=10.0)
    for task in range(3):
        split = train(method, task)
        method.finish(task, split)
        assert (method.grouped > 0) == (task == 2)
    assert not any(each.tau.any() for each in method.decomposed.values())  # 2·3/5 = 1 group, and all is in its range
    assert method.logits(data().x, 1).isfinite().all()
