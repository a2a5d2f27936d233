"""Flatness-aware projection: its step written out, its parts, and what it is without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import resumed_to_the_same_matrix
from torch import Tensor
from torch.distributions import Beta

from remnant.data import Split
from remnant.methods import METHODS, Method
from remnant.methods.dfgp import DFSGP, ascended, mixed
from remnant.models import Network, build
from small_options import announced

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:Old outputs moved")
HOSTS = {"dfgpm": "gpm", "dfsgp": "sgp", "dftrgp": "trgp"}


def network(kind: str = "mlp") -> Network:
    shape, usual = ((12,), {"hidden": (10, 9)}) if kind == "mlp" else ((3, 19, 19), {"width": 2, "norm": "batch"})
    return build(kind, input_shape=shape, classes=(3, 3), seed=7, **usual).double()  # type: ignore[arg-type]


def data(seed: int = 0, shape: Any = (12,)) -> Split:
    g = torch.Generator().manual_seed(seed)
    return Split.of(torch.randn(24, *shape, generator=g).double(), torch.randint(0, 3, (24,), generator=g))


def learner(name: str, kind: str = "mlp", **options: Any) -> Method:
    trust = {"trust": 0.1} if "trgp" in name else {}
    net = network(kind)
    made = METHODS[name](net, lr=0.125, threshold={"value": 0.7}, samples=1000, **trust, **options)
    return announced(made, *(data(task, net.input_shape) for task in range(2)))


def learn(method: Method, step: Any = None) -> list[Tensor]:
    for task in range(2):
        split = data(task, method.network.input_shape)
        torch.manual_seed(task)
        method.start(task)
        for part in torch.arange(24).split(8):
            (step or method.step)(split.x[part], split.y[part])
        method.finish(task, split)
    return [p.detach() for p in method.network.parameters()]


def test_mixup_is_between_two_examples_and_between_their_labels() -> None:
    x, y = torch.arange(3.0)[:, None, None].expand(3, 2, 2), torch.tensor([0, 1, 3])
    share = torch.tensor([1.0, 0.25, 0.5])
    images, labels = mixed(x, y, share, 4)
    assert images[:, 1, 0].tolist() == [0.0, 0.25, 1.5]
    assert labels.tolist() == [[1, 0, 0, 0], [0.75, 0.25, 0, 0], [0, 0.5, 0, 0.5]]
    images, labels = mixed(x, y, share, 4, labels_swapped=True)
    assert images[:, 1, 0].tolist() == [0.0, 0.25, 1.5]
    assert labels[:2].tolist() == [[0, 0, 0, 1], [0.25, 0.75, 0, 0]]


def test_uphill_is_a_fixed_distance_and_is_undone_exactly() -> None:
    weights = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(5))]
    before, gradients = [w.detach().clone() for w in weights], [torch.randn(4, 3), torch.randn(5)]
    length = torch.cat([g.flatten() for g in gradients]).norm()
    with ascended(weights, gradients, 0.5):
        for weight, old, gradient in zip(weights, before, gradients, strict=True):
            torch.testing.assert_close(weight.detach(), old + 0.5 * gradient / length)
    assert all(torch.equal(a, b) for a, b in zip(weights, before, strict=True))


def slow_step(method: DFSGP, x: Tensor, y: Tensor) -> None:
    """The paper's step on an MLP: loops over weights, one gradient after the other, and projections as matrices."""
    share = Beta(torch.tensor(20.0), torch.tensor(20.0)).sample((len(x),)).double()
    net, task = method.network, method.task
    weights = [net.hidden[0].weight, net.hidden[1].weight, net.heads[task].weight]  # type: ignore[index, union-attr]

    def objective(share: Tensor) -> Tensor:
        total = F.cross_entropy(net(x, task), y)
        for i in range(len(x)):
            other = (i - 1) % len(x)
            score = net((share[i] * x[i] + (1 - share[i]) * x[other])[None], task)
            per_label = [F.cross_entropy(score, label[None]) for label in (y[i], y[other])]
            total = total + 0.3 / len(x) * (share[i] * per_label[0] + (1 - share[i]) * per_label[1])
        return total

    share.requires_grad_()
    *gradients, of_share = torch.autograd.grad(objective(share), [*weights, share])
    length = sum(g.square().sum() for g in gradients) ** 0.5
    start = [w.detach().clone() for w in weights]
    with torch.no_grad():
        for w, g in zip(weights, gradients, strict=True):
            w += 0.2 * g / length
        share = (share + 0.2 * of_share / of_share.norm()).clamp(0, 1)
    gradients = list(torch.autograd.grad(objective(share), weights))
    with torch.no_grad():
        for n, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            if n < 2:
                subspace: Any = method.memory.subspaces[f"hidden.{n}"]
                M = subspace.basis
                g = g - g @ M @ torch.diag(subspace.weights) @ M.T
            w.copy_(start[n] - 0.125 * g)


def test_it_is_the_step_written_out() -> None:
    options: dict[str, Any] = {"radius": 0.2, "mixup_weight": 0.3, "alpha": 2.0}
    ours, theirs = learner("dfsgp", **options), learner("dfsgp", **options)
    assert isinstance(theirs, DFSGP)
    ends = learn(ours), learn(theirs, lambda x, y: slow_step(theirs, x, y))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["mlp", "alexnet"])
@pytest.mark.parametrize("name", HOSTS)
def test_without_radius_and_mixup_it_is_its_host(name: str, kind: str) -> None:
    ends = learn(learner(name, kind, radius=0.0, mixup_weight=0.0)), learn(learner(HOSTS[name], kind))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("options", [{"radius": 0.0}, {"mixup_weight": 0.0}], ids=["mixup alone", "uphill alone"])
def test_either_part_alone_changes_the_steps(options: dict[str, Any]) -> None:
    ends = learn(learner("dfgpm", **options)), learn(learner("gpm"))
    assert not any(torch.allclose(a, b, atol=1e-6) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("name", ["dfgpm", "dftrgp"])
def test_uphill_moves_nothing_that_is_remembered_or_frozen(name: str) -> None:
    method: Any = learner(name, "alexnet", radius=1.0)
    learn(method)
    split = data(1, method.network.input_shape)
    norms = [p.detach().clone() for n, p in method.network.named_parameters() if n.startswith("norm")]
    method.start(1)
    method.step(split.x, split.y)
    assert method.memory.verify(tolerance=1e-6).worst < 1e-6
    after = [p for n, p in method.network.named_parameters() if n.startswith("norm")]
    assert all(torch.equal(a, b) for a, b in zip(norms, after, strict=True))


def test_killed_in_a_task_it_resumes_to_the_same_matrix(tmp_path: Path) -> None:
    few = ("training.epochs=3", "training.batch=10", "trust=0.1", "threshold=0.8")
    resumed_to_the_same_matrix("dftrgp", tmp_path, *few)
