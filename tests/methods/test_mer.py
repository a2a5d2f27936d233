"""Meta-experience replay against the paper's loops over single examples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods import MER
from remnant.models import Network, build
from remnant.options import OptionError


def network(classes: Any) -> Network:
    return build("mlp", input_shape=(6,), classes=classes, seed=3, hidden=(5, 4), bias=True).double()


def data(task: int) -> Split:
    g = torch.Generator().manual_seed(task)
    return Split.of(torch.randn(12, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (12,), generator=g))


def sgd(net: Network, x: Tensor, y: Tensor, tasks: list[int], lr: float) -> None:
    losses = [F.cross_entropy(net(a[None], t), b[None]) for a, b, t in zip(x, y, tasks, strict=True)]
    parameters = list(net.parameters())
    found = torch.autograd.grad(torch.stack(losses).mean(), parameters, allow_unused=True)
    with torch.no_grad():
        for p, g in zip(parameters, found, strict=True):
            p -= lr * (0 if g is None else g)


def set_between(net: Network, start: dict[str, Tensor], kept: float) -> None:
    now = net.state_dict()
    net.load_state_dict({name: start[name] + kept * (now[name] - start[name]) for name in now})


def weights(net: Network) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize(("arriving", "at_once"), [(1, 1), (3, 1), (3, 4)])
@pytest.mark.parametrize("classes", [3, (3, 4)], ids=["one head", "heads"])
def test_two_tasks_are_the_papers_loops(classes: Any, arriving: int, at_once: int) -> None:
    ours, theirs = network(classes), network(classes)
    options = {"memory": 7, "memory_batch": 5, "batches": 2, "at_once": at_once, "beta": 0.25, "gamma": 0.5}
    method = MER(ours, lr=0.125, **options)
    shadow = MER(network(classes), lr=0.125, **options).memory  # meets the same examples and random numbers
    for task in range(2):
        split = data(task)
        method.start(task)
        for part in torch.arange(12).split(arriving):
            random = torch.get_rng_state()
            method.step(split.x[part], split.y[part])
            torch.set_rng_state(random)
            labels = method.mixed.labels(split.y[part], task)
            shadow.offer(split.x[part], labels)
            first = weights(theirs)
            for _ in range(2):
                start = weights(theirs)
                remembered, old = shadow.draw(5)
                x, mixed = torch.cat([split.x[part], remembered]), torch.cat([labels, old])
                for few in torch.rand(arriving + 5).argsort().split(at_once):
                    tasks = [0] * len(few) if classes == 3 else method.mixed.task_of[mixed[few]].tolist()
                    y = mixed[few] - torch.tensor([method.mixed.offsets[t] for t in tasks])
                    sgd(theirs, x[few], y, tasks, 0.125)
                set_between(theirs, start, 0.25)
            set_between(theirs, first, 0.5)
        method.finish(task, split)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-9, atol=1e-12)
    assert method.nbytes == 7 * (6 * 8 + 8)


def test_steps_stay_nearer_to_the_start_the_less_is_kept() -> None:
    split, ways = data(0), []
    for beta in (1.0, 0.5, 0.1):
        torch.manual_seed(0)
        method, start = MER(network(3), lr=0.125, memory=7, memory_batch=4, beta=beta), network(3)
        method.start(0)
        method.step(split.x[:4], split.y[:4])
        moved = zip(method.network.parameters(), start.parameters(), strict=True)
        ways.append(float(torch.stack([(p - q).norm() for p, q in moved]).norm().detach()))
    assert ways[1:] == pytest.approx([0.5 * ways[0], 0.1 * ways[0]])


def test_a_lone_last_example_is_left_out_where_a_norm_could_not_use_it() -> None:
    net = build("alexnet", input_shape=(3, 19, 19), classes=(3,), seed=0, width=2)
    with pytest.raises(ValueError, match="set at_once to 2 or more"):
        MER(net, lr=0.1)
    method = MER(net, lr=0.1, memory=6, memory_batch=5, at_once=4)
    method.start(0)
    assert method.step(torch.randn(4, 3, 19, 19), torch.arange(4) % 3).isfinite()  # 9 examples: 4, 4 and 1


def test_settings_are_checked() -> None:
    for wrong in ("beta=0", "gamma=1.5", "batches=0", "at_once=0", "memory_batch=0"):
        with pytest.raises(OptionError, match="takes a"):
            resolve("pmnist", "mer", [wrong])
