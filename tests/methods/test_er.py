"""Experience replay against a step written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.experiments.settings import resolve
from remnant.methods import ER, Finetune
from remnant.models import Network, build
from remnant.options import OptionError


def network(classes: int | Sequence[int], **options: Any) -> Network:
    return build(
        "mlp", input_shape=(6,), classes=classes, seed=3, **{"hidden": (5, 4), "bias": True, **options}
    ).double()


def batches(task: int, count: int = 8, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(task)
    x = torch.randn(count, size, 6, generator=g, dtype=torch.float64)
    return list(zip(x, torch.randint(0, 3, (count, size), generator=g), strict=True))


def close(a: Network, b: Network) -> bool:
    return all(torch.allclose(p, q, rtol=1e-9, atol=1e-12) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("classes", [3, (3, 4, 3)], ids=["one head", "heads"])
def test_three_tasks_are_sgd_on_the_mean_over_the_batch_and_one_from_memory(classes: Any) -> None:
    ours, theirs = network(classes), network(classes)
    method = ER(ours, lr=0.125, memory=7)  # a rate that float32 holds exactly
    kept: list[tuple[Tensor, Tensor, int]] = []  # as the memory has it, with the task of each
    offered = 0
    for task in range(3):
        method.start(task)
        for x, y in batches(task):
            state = torch.get_rng_state()
            method.step(x, y)
            after = torch.get_rng_state()
            torch.set_rng_state(state)
            chances = torch.rand(4, dtype=torch.float64)
            drawn = [kept[int(chance * len(kept))] for chance in chances] if kept else []
            losses = [F.cross_entropy(theirs(a[None], t), b[None]) for a, b, t in drawn]
            losses += [F.cross_entropy(theirs(a[None], task), b[None]) for a, b in zip(x, y, strict=True)]
            gradients = torch.autograd.grad(torch.stack(losses).mean(), list(theirs.parameters()), allow_unused=True)
            with torch.no_grad():
                for parameter, gradient in zip(theirs.parameters(), gradients, strict=True):
                    if gradient is not None:
                        parameter -= 0.125 * gradient
            for a, b, chance in zip(x, y, torch.rand(4, dtype=torch.float64), strict=True):
                offered += 1
                if len(kept) < 7:
                    kept.append((a, b, task))
                elif int(chance * offered) < 7:
                    kept[int(chance * offered)] = (a, b, task)
            torch.set_rng_state(after)
        assert close(ours, theirs)
    assert {task for _, _, task in kept} >= {0, 2}  # heads of the past were trained, too
    assert method.nbytes == 7 * (6 * 8 + 8)


@pytest.mark.parametrize("classes", [3, (3, 4)], ids=["one head", "heads"])
def test_the_first_step_has_nothing_to_replay_and_is_plain_sgd(classes: Any) -> None:
    ours, theirs = network(classes), network(classes)
    methods = ER(ours, lr=0.125, memory=7), Finetune(theirs, lr=0.125)
    x, y = batches(0)[0]
    losses = []
    for method in methods:
        method.start(0)
        losses.append(method.step(x, y).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert close(ours, theirs)


def test_a_norm_by_the_batch_sees_the_joined_batch() -> None:
    shape = (3, 19, 19)
    made = [
        build("alexnet", input_shape=shape, classes=(3, 3), seed=1, width=2, dropout=(0.0, 0.0), norm="batch")
        for _ in "ab"
    ]
    ours, theirs = (net.double() for net in made)
    method = ER(ours, lr=0.125, memory=4)
    x = torch.randn(8, *shape, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    method.start(0)
    method.memory.offer(x[:4], y[:4])
    method.start(1)
    theirs.train()
    state = torch.get_rng_state()
    method.step(x[4:], y[4:])
    torch.set_rng_state(state)
    rows = (torch.rand(4, dtype=torch.float64) * 4).long()
    features = theirs.features(torch.cat([x[4:], x[rows]]))
    loss = (
        F.cross_entropy(theirs.heads[1](features[:4]), y[4:]) + F.cross_entropy(theirs.heads[0](features[4:]), y[rows])
    ) / 2
    gradients = torch.autograd.grad(loss, list(theirs.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(theirs.parameters(), gradients, strict=True):
            parameter -= 0.125 * gradient
    assert close(ours, theirs)


def test_settings_are_checked() -> None:
    assert resolve("pmnist", "er").stream["pixels"] == "unit"  # and GPM's are normalised
    assert "pixels" not in resolve("pmnist", "gpm").stream
    assert resolve("pmnist", "er").options == {"lr": 0.1, "memory": 1000}
    for wrong in ("memory=0", "memory=1.5"):
        with pytest.raises(OptionError, match="memory takes a whole number"):
            resolve("pmnist", "er", [wrong])
