"""RCL's controller, trials and units, and that a task sees its own units and older ones only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.methods.rcl import RCL, Controller
from remnant.models import Network, build


def network(kind: str = "lenet", **options: Any) -> Network:
    shape, width = ((3, 8, 8), {"width": 2}) if kind == "lenet" else ((5,), {"hidden": (6, 4)})
    return build(kind, input_shape=shape, classes=(3, 3, 3), seed=1, **width, **options).double()


def data(shape: tuple[int, ...] = (3, 8, 8), seed: int = 0, count: int = 24) -> Split:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return Split.of(torch.randn(count, *shape, generator=g).double() + torch.randn(3, *shape, generator=g)[y], y)


def train(method: RCL, task: int, split: Split, epochs: int = 6) -> list[tuple[float, list[int]]]:
    """Returns the reward and the choices of every trial."""
    method.start(task)
    method.validation(task, split)
    trials = []
    for epoch in range(epochs):
        method.network.train()
        method.on_epoch_start(epoch, epochs, 1)
        method.step(split.x, split.y)
        if method.trial_ends:
            with torch.no_grad():
                right = (method.logits(split.x, task).argmax(1) == split.y).double().mean().item()
            trials.append((right - method.price * int(method.choices.sum()), method.choices.tolist()))
        method.on_epoch_end()
    method.finish(task, split)
    return trials


@pytest.mark.parametrize("options", [{}, {"bias": True}])
def test_a_task_sees_units_up_to_its_own_and_its_answers_stay(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    method = RCL(network(**options), lr=0.05, trials=2, most={"*": 3})
    answers: list[Tensor] = []
    sizes = [torch.tensor(method.units.first_sizes)]
    for task in range(3):
        split = data(seed=task)
        trials = train(method, task, split)
        seen = torch.stack([part.sum() for part in method.units.of_layers(method.units.seen[task])]).long()
        chosen = torch.tensor(max(trials)[1]) if trials else torch.zeros(4, dtype=torch.int64)
        assert torch.equal(seen, sizes[-1] + chosen)
        sizes.append(seen)
        method.network.eval()
        for old, answer in enumerate(answers):
            assert torch.equal(method.logits(data().x, old), answer)
        answers.append(method.logits(data().x, task))
    assert sizes[-1].sum() > sizes[0].sum()


def test_a_task_is_a_network_of_its_size() -> None:
    """The network of the units that it sees, cut out of the widest one, gives the same answers."""
    torch.manual_seed(0)
    method, split = RCL(network("mlp"), lr=0.05, trials=1, most={"*": 3}), data((5,))
    for task in range(2):
        train(method, task, split)
    one, two = (int(part.sum()) for part in method.units.of_layers(method.units.seen[1]))
    W1, W2 = method.network.hidden[0].weight[:one], method.network.hidden[1].weight[:two, :one]  # type: ignore[union-attr, index]
    h = F.relu(F.relu(split.x @ W1.T) @ W2.T)
    assert torch.allclose(method.logits(split.x, 1), h @ method.network.head_of(1).weight[:, :two].T)


def test_added_units_are_counted() -> None:
    torch.manual_seed(3)
    method, split = RCL(network("mlp"), lr=0.05, trials=1, most={"hidden.0": 3, "hidden.1": 2}), data((5,))
    base = 5 * 6 + 6 * 4 + 3 * 4 * 3
    a, b, heads = 6, 4, 0
    for task in range(3):
        trials = train(method, task, split)
        if trials:
            a, b = a + trials[0][1][0], b + trials[0][1][1]
            heads += 3 * (b - 4)
        assert method.capacity == pytest.approx((5 * a + a * b + 3 * 4 * 3 + heads) / base)
        assert method.nbytes == (5 * a + a * b + 3 * 4 * 3 + heads - base) * 8
    assert a > 6
    assert b > 4


def test_the_best_trial_is_kept_and_old_weights_never_move() -> None:
    torch.manual_seed(0)
    method, split = RCL(network(), lr=0.05, trials=4, most={"*": 3}, price=0.01), data()
    train(method, 0, split)
    before = {name: p.detach().clone() for name, p in method.units.body.items()}
    trials = train(method, 1, split, epochs=8)
    assert len(trials) == 4
    assert method.best_reward.item() == pytest.approx(max(trials)[0])
    with torch.no_grad():
        right = (method.logits(split.x, 1).argmax(1) == split.y).double().mean().item()
    added = int(method.units.seen[1].sum() - method.units.seen[0].sum())
    assert right - 0.01 * added == pytest.approx(max(trials)[0])
    for name, p in method.units.body.items():
        old = method.units.mask(p, method.units.seen[0]).expand_as(p) > 0
        assert torch.equal(p[old], before[name][old])


def test_the_controller_learns_which_numbers_are_rewarded() -> None:
    torch.manual_seed(0)
    method = RCL(network("mlp"), lr=0.05, most={"*": 3})
    early, late = [], []
    for trial in range(300):
        with torch.no_grad():
            choices = method.controller()[0]
        method.choices.copy_(choices)
        reward = choices.double().mean() / 3  # the more, the better
        method._teach_controller(reward)
        (early if trial < 100 else late if trial >= 200 else []).append(reward.item())
    assert sum(late) / 100 > sum(early) / 100 + 0.15


def test_the_probability_of_given_numbers_is_that_of_drawing_them() -> None:
    torch.manual_seed(0)
    controller = Controller([1, 2])
    every = [torch.tensor([a, b]) for a in range(2) for b in range(3)]
    probability = torch.stack([controller(each)[1].exp() for each in every])
    assert probability.sum().item() == pytest.approx(1, abs=1e-5)
    with torch.no_grad():
        drawn = [controller()[0] for _ in range(600)]
    for each, expected in zip(every, probability, strict=True):
        share = sum(torch.equal(each, one) for one in drawn) / 600
        assert share == pytest.approx(expected.item(), abs=0.08)
