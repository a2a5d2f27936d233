"""EWC's Fisher against a loop over examples, and its step against autograd of the whole objective."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import transfer_of
from torch import Tensor, nn

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods.ewc import EWC, fisher_diagonal
from remnant.methods.parts import per_example
from remnant.models import Network, build
from remnant.options import OptionError

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((6,), {"hidden": (5, 4), "bias": True}),
    "alexnet": ((3, 19, 19), {"width": 1}),
    "lenet": ((3, 12, 12), {"width": 2}),
    "resnet18": ((3, 16, 16), {"width": 1}),
}


def network(kind: str = "mlp", classes: int | Sequence[int] = (3, 4), **options: Any) -> Network:
    shape, usual = NETWORKS[kind]
    return build(kind, input_shape=shape, classes=classes, seed=3, **{**usual, **options}).double()


def data(net: Network, count: int = 14, seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *net.input_shape, generator=g, dtype=torch.float64)
    return Split.of(x, torch.randint(0, 3, (count,), generator=g))


def squares(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    return [g.square() for g in torch.autograd.grad(loss, parameters, retain_graph=True)]


def close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-8, atol=1e-14) for a, b in zip(found, expected, strict=True))


# --- the Fisher -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 2**26])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("mlp", {}), ("lenet", {}), ("alexnet", {"norm": "running"}), ("resnet18", {"norm": "running"})],
)
def test_the_fisher_is_the_mean_over_examples_of_the_squared_gradient_of_log_p(
    kind: str, options: dict[str, Any], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(per_example, "AT_ONCE", at_once)
    net = network(kind, **options)
    split = data(net)
    parameters = {name: p for name, p in net.named_parameters() if not name.startswith("heads.")}
    net.train()  # dropout must not matter
    found = fisher_diagonal(net, parameters, split, 1)
    net.eval()
    slow = [torch.zeros_like(p) for p in parameters.values()]
    for x, y in zip(split.x, split.y, strict=True):
        log_p = F.log_softmax(net(x[None], 1), dim=1)[0, y]
        slow = [s + g / len(split) for s, g in zip(slow, squares(log_p, list(parameters.values())), strict=True)]
    assert close(found, slow)
    assert all(f.max() > 0 for f in found)


def _held(
    x: Tensor, mean: None, var: None, weight: Tensor, bias: Tensor, training: bool, momentum: float, eps: float
) -> Tensor:
    """Batch normalisation whose statistics are constants to the derivative."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    centre, spread = x.detach().mean(axes, keepdim=True), x.detach().var(axes, correction=0, keepdim=True)
    return (x - centre) / (spread + eps).sqrt() * weight.view(shape) + bias.view(shape)


@pytest.mark.parametrize("kind", ["alexnet", "resnet18"])
def test_a_norm_by_the_batch_lends_each_example_the_statistics_of_its_company(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(kind, norm="batch").eval()
    split = data(net)
    parameters = {name: p for name, p in net.named_parameters() if not name.startswith("heads.")}
    found = fisher_diagonal(net, parameters, split, 0)
    own = [net.norm1] if kind == "alexnet" else [net.stem_norm]
    assert all(norm.running_mean is None for norm in own)  # lent, and given back
    monkeypatch.setattr(F, "batch_norm", _held)
    losses = F.cross_entropy(net(split.x, 0), split.y, reduction="none")  # all 14 in one company
    slow = [torch.zeros_like(p) for p in parameters.values()]
    for loss in losses:
        slow = [s + g / len(split) for s, g in zip(slow, squares(loss, list(parameters.values())), strict=True)]
    assert close(found, slow)


def test_a_companys_last_lone_example_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_example, "NORM_BATCH", 13)
    net = network("alexnet", norm="batch")
    found = fisher_diagonal(net, dict(net.named_parameters()), data(net), 0)
    assert all(f.isfinite().all() for f in found)


@pytest.mark.parametrize(("kind", "options"), [("mlp", {}), ("alexnet", {"norm": "batch"})])
def test_in_batches_gradients_are_averaged_before_they_are_squared(kind: str, options: dict[str, Any]) -> None:
    net = network(kind, **options).eval()
    split = data(net)
    parameters = {name: p for name, p in net.named_parameters() if not name.startswith("heads.")}
    torch.manual_seed(4)
    found = fisher_diagonal(net, parameters, split, 0, batch=4)
    torch.manual_seed(4)
    order = torch.randperm(14)[:12]  # the last two fill no batch
    slow = [torch.zeros_like(p) for p in parameters.values()]
    for part in order.split(4):
        loss = F.cross_entropy(net(split.x[part], 0), split.y[part])
        slow = [s + g / 3 for s, g in zip(slow, squares(loss, list(parameters.values())), strict=True)]
    assert close(found, slow)


def test_fewer_examples_than_a_batch_are_one_batch() -> None:
    net = network()
    parameters = {"hidden.0.weight": net.hidden[0].weight}
    few, all_ = (fisher_diagonal(net, parameters, data(net), 0, batch=batch) for batch in (1000, 14))
    assert close(few, all_)


# --- the step ---------------------------------------------------------------------------------------------------------


class SlowEWC:
    """SGD by autograd on the objective as it is written, Fishers kept for every task and averaged when asked for."""

    def __init__(self, net: Network, lr: float, strength: float, names: Sequence[str]) -> None:
        self.net, self.lr, self.strength = net, lr, strength
        self.shared = {name: p for name, p in net.named_parameters() if name in names}
        self.fishers: list[list[Tensor]] = []
        self.last: list[Tensor] = []

    def penalty(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for fishers in self.fishers:
            for f, p, old in zip(fishers, self.shared.values(), self.last, strict=True):
                total = total + (f * (p - old).square()).sum() / len(self.fishers)
        return self.strength / 2 * total

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        parameters = [*self.shared.values()]
        parameters += [p for p in self.net.head_of(task).parameters() if all(p is not s for s in parameters)]
        objective = F.cross_entropy(self.net(x, task), y) + self.penalty()
        gradients = torch.autograd.grad(objective, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= self.lr * gradient

    def finish(self, split: Split, task: int) -> None:
        fishers = [torch.zeros_like(p) for p in self.shared.values()]
        for x, y in zip(split.x, split.y, strict=True):
            loss = F.cross_entropy(self.net(x[None], task), y[None])
            new = squares(loss, list(self.shared.values()))
            fishers = [f + g / len(split) for f, g in zip(fishers, new, strict=True)]
        self.fishers.append(fishers)
        self.last = [p.detach().clone() for p in self.shared.values()]


@pytest.mark.parametrize("classes", [3, (3, 4, 3)], ids=["one head", "heads"])
def test_three_tasks_are_sgd_on_the_loss_with_the_penalty(classes: Any) -> None:
    ours, theirs = network(classes=classes), network(classes=classes)
    method = EWC(ours, lr=0.125, strength=7.0)  # a rate that float32 holds exactly
    body = [name for name, _ in ours.named_parameters() if not name.startswith("heads.")]
    slow = SlowEWC(theirs, 0.125, 7.0, body)
    penalties = []
    for task in range(3):
        split = data(ours, count=24, seed=task)
        method.start(task)
        for part in torch.arange(24).split(4):
            method.step(split.x[part], split.y[part])
            slow.step(split.x[part], split.y[part], task)
        penalties.append(slow.penalty().item())
        method.finish(task, split)
        slow.finish(split, task)
        assert close(list(ours.parameters()), list(theirs.parameters()))
    assert penalties[0] == 0
    assert min(penalties[1:]) > 1e-4
    assert method.nbytes == 2 * sum(p.nbytes for name, p in ours.named_parameters() if name in body)


def test_the_stronger_the_penalty_the_nearer_the_weights_stay() -> None:
    ways = []
    for strength in (0.0, 10.0, 100.0):
        method = EWC(network(), lr=0.05, strength=strength)
        split = data(method.network)
        method.start(0)
        method.finish(0, split)
        method.start(1)
        for _ in range(20):
            method.step(split.x, split.y)
        moved = zip(method.importance, method.shared.values(), method.last, strict=True)
        ways.append(sum(float((f * (p - old).square()).sum().detach()) for f, p, old in moved))
    assert ways[0] > 1.5 * ways[1] > 1.5 * 1.5 * ways[2] > 0


def test_no_penalty_is_so_strong_that_weights_overshoot() -> None:
    """One step from anywhere is the step from θ*, by the gradient where the weights are."""
    method = EWC(network(), lr=0.125, strength=1e12)
    split = data(method.network)
    method.start(0)
    method.finish(0, split)
    method.start(1)
    with torch.no_grad():
        for parameter in method.shared.values():
            parameter += torch.randn_like(parameter)
    gradients = torch.autograd.grad(method.loss(split.x, split.y), list(method.shared.values()))
    method.step(split.x, split.y)
    for p, f, old, g in zip(method.shared.values(), method.importance, method.last, gradients, strict=True):
        stiff = f > 1e-9
        assert stiff.any()
        assert torch.allclose(p[stiff], (old - 0.125 * g)[stiff])
    method.lr.fill_(0.5)  # a new rate, a new bound
    method.on_epoch_start(1, 2, 1)
    assert max(s.max().item() for s in method.stiffness) == 2.0


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_it_forgets_less_than_no_protection(tmp_path: Path) -> None:
    few = ("stream.tasks=2", "training.epochs=4")
    assert transfer_of("ewc", tmp_path, *few) > transfer_of("finetune", tmp_path, *few) + 0.03


def test_two_tasks_of_small_pictures_on_the_residual_network_of_five_datasets(tmp_path: Path) -> None:
    net = build("resnet18", input_shape=(3, 16, 16), classes=(10, 10), seed=1, width=2, stem_stride=1, norm="batch")
    options = {**resolve("five-datasets", "ewc").options, "lr": 0.03}
    method = EWC(net, **options)
    g = torch.Generator().manual_seed(0)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for task in range(2):
        y = torch.arange(60) % 10
        split = Split.of(torch.randn(60, 3, 16, 16, generator=g) + torch.randn(10, 3, 16, 16, generator=g)[y], y)
        method.start(task)
        before = [m.weight.detach().clone() for m in norms]
        first = F.cross_entropy(method.logits(split.x, task), y)
        for _ in range(6):
            for part in torch.randperm(60).split(20):
                method.step(split.x[part], split.y[part])
        method.finish(task, split)
        assert F.cross_entropy(method.logits(split.x, task), y) < first - 0.2
        moved = any(not torch.equal(m.weight, b) for m, b in zip(norms, before, strict=True))
        assert moved == (task == 0)  # norms belong to the first task
    assert all(f.isfinite().all() and f.max() > 0 for f in method.importance)


@pytest.mark.parametrize(
    ("benchmark", "lr", "strength"),
    [
        ("pmnist", 0.03, 1000),
        ("split-cifar100", 0.05, 5000),
        ("split-miniimagenet", 0.03, 5000),
        ("five-datasets", 0.03, 5000),
    ],
)
def test_recipes_have_the_papers_settings(benchmark: str, lr: float, strength: float) -> None:
    assert resolve(benchmark, "ewc").options == {"lr": lr, "strength": strength, "fisher_batch": 20}


def test_settings_are_checked() -> None:
    assert resolve("pmnist", "ewc", ["strength=10", "fisher_batch=1"]).options["strength"] == 10.0
    for wrong in ("strength=-1", "fisher_batch=0", "fisher_batch=1.5"):
        with pytest.raises(OptionError, match="takes a"):
            resolve("pmnist", "ewc", [wrong])
