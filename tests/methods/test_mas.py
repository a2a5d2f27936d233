"""Memory aware synapses: its importance against a loop over examples, and its step against autograd of the objective."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_nets import data_for
from small_runs import transfer_of
from torch import Tensor

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods import MAS
from remnant.models import Network, build
from remnant.options import OptionError

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((6,), {"hidden": (5, 4), "bias": True}),
    "lenet": ((3, 12, 12), {"width": 2}),
    "alexnet": ((3, 19, 19), {"width": 1, "norm": "running"}),
}


def network(kind: str = "mlp", classes: int | Sequence[int] = (3, 4, 3)) -> Network:
    shape, options = NETWORKS[kind]
    return build(kind, input_shape=shape, classes=classes, seed=3, **options).double()


def slow_importance(net: Network, parameters: Sequence[Tensor], x: Tensor, task: int) -> list[Tensor]:
    total = [torch.zeros_like(p) for p in parameters]
    for one in x:
        gradients = torch.autograd.grad(net(one[None], task).square().sum(), parameters)
        total = [t + g.abs() / len(x) for t, g in zip(total, gradients, strict=True)]
    return total


def close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-8, atol=1e-13) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", NETWORKS)
def test_importance_sums_over_tasks_the_mean_sensitivity_of_the_outputs(kind: str) -> None:
    method = MAS(network(kind), lr=0.05)
    expected = [torch.zeros_like(p) for p in method.shared.values()]
    for task in range(2):
        split = data_for(method.network, task)
        method.start(task)
        for part in torch.arange(24).split(8):
            method.step(split.x[part], split.y[part])
        method.finish(task, Split.of(split.x, torch.zeros_like(split.y)))  # labels do not matter
        method.network.eval()
        new = slow_importance(method.network, list(method.shared.values()), split.x, task)
        expected = [e + n for e, n in zip(expected, new, strict=True)]
        assert close(method.importance, expected)
    assert all(e.max() > 0 for e in expected)


@pytest.mark.parametrize("classes", [3, (3, 4, 3)], ids=["one head", "heads"])
def test_three_tasks_are_sgd_on_the_loss_with_the_penalty(classes: Any) -> None:
    ours, theirs = network(classes=classes), network(classes=classes)
    method = MAS(ours, lr=0.125, strength=0.5)  # a rate that float32 holds exactly
    shared = [p for name, p in theirs.named_parameters() if not name.startswith("heads.")]
    omega, last = [torch.zeros_like(p) for p in shared], [p.detach().clone() for p in shared]
    for task in range(3):
        split = data_for(ours, task)
        method.start(task)
        for part in torch.arange(24).split(4):
            method.step(split.x[part], split.y[part])
            own = list(dict.fromkeys((*shared, *theirs.head_of(task).parameters())))
            away = [(o * (p - old).square()).sum() for o, p, old in zip(omega, shared, last, strict=True)]
            loss = F.cross_entropy(theirs(split.x[part], task), split.y[part]) + 0.5 * torch.stack(away).sum()
            with torch.no_grad():
                for p, g in zip(own, torch.autograd.grad(loss, own), strict=True):
                    p -= 0.125 * g
        method.finish(task, split)
        omega = [o + n for o, n in zip(omega, slow_importance(theirs, shared, split.x, task), strict=True)]
        last = [p.detach().clone() for p in shared]
        assert close(list(ours.parameters()), list(theirs.parameters()))
    assert method.nbytes == 2 * sum(p.nbytes for p in method.shared.values())


def test_a_random_part_of_the_examples_is_enough() -> None:
    method = MAS(network(classes=3), lr=0.1, samples=5)
    split = data_for(method.network, 0)
    method.start(0)
    torch.manual_seed(2)
    method.finish(0, split)
    torch.manual_seed(2)
    chosen = torch.randperm(24)[:5]
    expected = slow_importance(method.network, list(method.shared.values()), split.x[chosen], 0)
    assert close(method.importance, expected)


def test_it_forgets_less_than_no_protection(tmp_path: Path) -> None:
    few = ("stream.tasks=2", "training.epochs=4")
    assert transfer_of("mas", tmp_path, *few) > transfer_of("finetune", tmp_path, *few) + 0.03


def test_settings_are_checked() -> None:
    for wrong in ("strength=-1", "samples=0"):
        with pytest.raises(OptionError, match="takes a"):
            resolve("pmnist", "mas", [wrong])
