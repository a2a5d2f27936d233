"""OWM: P is the formula of recursive least squares, steps are the gradient times P, α falls as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from small_nets import smaller_data as data
from small_nets import smaller_network as network
from small_runs import transfer_of
from torch import Tensor, nn

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.memory import views_of
from remnant.methods.owm import OWM, Projector
from remnant.models import Network
from remnant.options import OptionError

ONE = {"*": 1.0}


def learn(method: OWM, task: int, split: Split) -> None:
    method.start(task)
    method.on_epoch_start(0, 1, len(split) // 6)
    for part in torch.arange(len(split)).split(6):
        method.step(split.x[part], split.y[part])


def projector(layer: nn.Module) -> Projector:
    (view,) = views_of(layer) or []
    return Projector(view, by_rows=isinstance(layer, nn.Linear))


# --- P ----------------------------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> nn.Conv2d:
    groups = draw(st.sampled_from([1, 2]))
    return nn.Conv2d(
        2 * groups,
        3 * groups,
        kernel_size=draw(st.integers(1, 3)),
        stride=draw(st.integers(1, 2)),
        padding=draw(st.integers(0, 1)),
        groups=groups,
        bias=draw(st.booleans()),
    )


@given(convolutions() | st.builds(nn.Linear, st.integers(1, 9), st.just(4), bias=st.booleans()), st.integers(0, 9))
def test_the_projector_is_the_formula_of_least_squares(layer: nn.Module, seed: int) -> None:
    """(I + Σ x̄·x̄ᵀ/α)⁻¹ with x̄ the mean of all rows: for a convolution, the mean patch over batch and positions."""
    g = torch.Generator().manual_seed(seed)
    of_layer = projector(layer.double())
    view = of_layer.view
    size = view.inputs + (view.bias is not None)
    information = torch.eye(size, dtype=torch.float64).repeat(view.groups, 1, 1)
    for alpha in (1.0, 0.3, 0.01):
        shape = (5, 2 * view.groups, 6, 7) if isinstance(layer, nn.Conv2d) else (5, view.inputs)
        x = torch.randn(*shape, generator=g, dtype=torch.float64)
        of_layer.update(x, torch.tensor(alpha, dtype=torch.float64))
        rows = view.rows(x)
        mean = (rows[None] if isinstance(rows, Tensor) else torch.cat(list(rows), dim=1)).mean(1)
        mean = mean if view.bias is None else F.pad(mean, (0, 1), value=1.0)
        information += mean[:, :, None] * mean[:, None, :] / alpha
    torch.testing.assert_close(of_layer.P, torch.linalg.inv(information), rtol=1e-7, atol=1e-9)


def test_it_stays_symmetric_and_positive_over_thousands_of_steps_in_float32_with_a_tiny_alpha() -> None:
    """Inputs as permuted MNIST has them: large, all of one sign in places, constant in others."""
    g = torch.Generator().manual_seed(0)
    of_layer = projector(nn.Linear(60, 5, bias=False))
    mean, mixing = 3 * torch.randn(60, generator=g), torch.randn(20, 60, generator=g)
    for step in range(4000):
        x = mean + torch.randn(10, 20, generator=g) @ mixing
        of_layer.update(x, torch.tensor(1e-5 ** (step / 4000), dtype=torch.float64))
    (P,) = of_layer.P
    assert (P - P.mT).abs().max() < 1e-12
    values = torch.linalg.eigvalsh((P + P.mT) / 2)
    assert values.min() > -1e-12
    assert values.max() <= 1 + 1e-12
    # 21 directions were seen, and what is left of them is next to nothing; the 39 others are whole.
    assert int((values < 1e-3).sum()) == 21
    assert int((values > 1 - 1e-6).sum()) == 39


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_projecting_inputs_is_projecting_the_gradient(bias: bool) -> None:
    layer = nn.Linear(6, 4, bias=bias).double()
    (view,) = views_of(layer) or []
    by_input, by_gradient = (Projector(view, by_rows=by_rows) for by_rows in (True, False))
    alpha = torch.tensor(0.5, dtype=torch.float64)
    for seed in range(3):
        x = data((6,), 5, seed, torch.float64).x
        with torch.no_grad():
            by_input.update(x, alpha)
            by_gradient.update(x, alpha)
    torch.testing.assert_close(by_input.P, by_gradient.P)
    output = layer(x)
    loss = output.square().sum()
    found = [
        p.project(list(torch.autograd.grad(loss, p.differentiated(output), retain_graph=True)))
        for p in (by_input, by_gradient)
    ]
    assert list(found[0]) == list(found[1]) == by_input.parameters
    for parameter, gradient in found[0].items():
        assert gradient.shape == parameter.shape
        torch.testing.assert_close(gradient, found[1][parameter])


# --- the method -------------------------------------------------------------------------------------------------------


class SlowOWM:
    """Written out for an MLP: one layer, one rank-one update and one product at a time."""

    def __init__(self, net: Network, lr: float, alphas: Sequence[float], decays: Sequence[float]) -> None:
        self.net, self.lr, self.alphas, self.decays = net, lr, alphas, decays
        layers: list[Any] = list(net.hidden)  # type: ignore[arg-type]
        self.layers: list[nn.Linear] = layers if net.multi_head else [*layers, net.head]
        self.P = [torch.eye(layer.in_features, dtype=torch.float64) for layer in self.layers]

    def step(self, x: Tensor, y: Tensor, task: int, done: float) -> None:
        weights: list[Tensor] = [layer.weight for layer in self.layers]
        head: list[Tensor] = [self.net.head_of(task).weight] if self.net.multi_head else []
        gradients = torch.autograd.grad(F.cross_entropy(self.net(x, task), y), [*weights, *head])
        inputs = x
        with torch.no_grad():
            moves = []
            for n, (weight, alpha, decay) in enumerate(zip(weights, self.alphas, self.decays, strict=True)):
                mean = inputs.mean(0)
                k = self.P[n] @ mean
                self.P[n] = self.P[n] - torch.outer(k, k) / (alpha * decay**done + mean @ k)
                moves.append(gradients[n] @ self.P[n])
                inputs = F.relu(inputs @ weight.mT)
            for weight, move in zip([*weights, *head], [*moves, *gradients[len(moves) :]], strict=True):
                weight -= self.lr * move


@pytest.mark.parametrize("classes", [3, (3, 3, 3)], ids=["one head", "heads"])
def test_it_is_the_algorithm_written_out(classes: Any) -> None:
    ours, theirs = network(classes).double(), network(classes).double()
    method = OWM(
        ours,
        lr=0.125,
        alpha_start={"hidden.0": 2.0, "*": 0.5},
        alpha_decay={"hidden.1": 0.01, "*": 0.1},
    )
    slow = SlowOWM(theirs, 0.125, [2.0, 0.5, 0.5][: len(method.layers)], [0.1, 0.01, 0.1][: len(method.layers)])
    for task in range(3):
        split = data(seed=task, dtype=torch.float64)
        method.start(task)
        for epoch in range(2):
            method.on_epoch_start(epoch, 2, 5)
            for step, part in enumerate(torch.arange(30).split(6)):
                method.step(split.x[part], split.y[part])
                slow.step(split.x[part], split.y[part], task, (epoch * 5 + step) / 10)
        method.finish(task, split)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    for P, expected in zip(method.projectors.values(), slow.P, strict=True):
        torch.testing.assert_close(P[0], expected, rtol=1e-7, atol=1e-9)


def test_what_was_seen_with_a_tiny_alpha_is_left_alone() -> None:
    """One direction of input in the first task: what the first layer makes of it stays, whatever the second teaches."""
    method = OWM(network((3, 3)), lr=0.1, alpha_start={"*": 1e-6}, alpha_decay=ONE)
    first, second = data(), data(seed=1)
    direction = torch.ones(30, 8)
    learn(method, 0, Split.of(direction, first.y))
    layer: Any = method.layers["hidden.0"][0]
    before, weight = layer(direction).detach(), layer.weight.detach().clone()
    learn(method, 1, second)
    assert not torch.allclose(layer.weight, weight, atol=1e-2)
    torch.testing.assert_close(layer(direction), before, rtol=0, atol=1e-4)


def test_a_shared_head_is_projected_and_heads_of_their_own_are_free() -> None:
    assert list(OWM(network(3), lr=0.1, alpha_start=ONE, alpha_decay=ONE).layers) == ["hidden.0", "hidden.1", "head"]
    method = OWM(network((3, 3)), lr=0.1, alpha_start=ONE, alpha_decay=ONE)
    assert list(method.layers) == ["hidden.0", "hidden.1"]
    assert [p is method.network.heads[0].weight for p in method.free] == [True]
    assert method.nbytes == (8**2 + 7**2) * 8


def test_only_steps_change_the_projectors() -> None:
    method, split = OWM(network(), lr=0.1, alpha_start=ONE, alpha_decay=ONE), data()
    learn(method, 0, split)
    before = {name: P.clone() for name, P in method.projectors.items()}
    method.finish(0, split)
    method.start(1)
    method.logits(split.x, 0)
    method.network.eval()
    method.logits(split.x, 0)
    assert all(torch.equal(P, before[name]) for name, P in method.projectors.items())
    method.step(split.x, split.y)
    assert not any(torch.equal(P, before[name]) for name, P in method.projectors.items())


def test_alpha_falls_from_its_start_to_its_end_in_every_task() -> None:
    method, split = OWM(network(), lr=0.0, alpha_start={"*": 2.0}, alpha_decay={"head": 1e-4, "*": 1.0}), data()
    for task in range(2):
        method.start(task)
        for epoch in range(4):
            method.on_epoch_start(epoch, 4, 5)
            torch.testing.assert_close(method.alpha[2].item(), 2 * 1e-4 ** (epoch / 4))
            for part in torch.arange(30).split(6):
                method.step(split.x[part], split.y[part])
        assert method.alpha[:2].tolist() == [2.0, 2.0]
        torch.testing.assert_close(method.alpha[2].item(), 2e-4)


@pytest.mark.parametrize("norm", ["running", "batch"])
def test_norms_are_learnt_with_the_first_task_and_then_hold_still(norm: str) -> None:
    method = OWM(network((3, 3), "alexnet", norm=norm, bias=True), lr=0.1, alpha_start=ONE, alpha_decay=ONE)
    states = [{n: t.clone() for n, t in method.network.state_dict().items()}]
    for task in range(2):
        learn(method, task, data((3, 19, 19), seed=task))
        states.append({n: t.clone() for n, t in method.network.state_dict().items()})
    initial, first, second = states
    norms = [name for name in initial if name.startswith("norm")]
    assert not any(torch.equal(initial[name], first[name]) for name in norms if name.endswith(("weight", "mean")))
    assert all(torch.equal(first[name], second[name]) for name in norms)
    others = set(initial) - set(norms) - {"heads.0.weight", "heads.0.bias"}
    assert not any(torch.equal(first[name], second[name]) for name in others)


# --- its settings -----------------------------------------------------------------------------------------------------


def test_patterns_that_leave_a_layer_out_or_match_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"No pattern of alpha_start matches layer 'hidden.1'. Add one, or '\*'"):
        OWM(network(), lr=0.1, alpha_start={"hidden.0": 1.0}, alpha_decay=ONE)
    with pytest.raises(ValueError, match=r"alpha_decay\['conv\*'\] matches no layer"):
        OWM(network(), lr=0.1, alpha_start=ONE, alpha_decay={"conv*": 0.1, "*": 1.0})


def test_one_number_is_meant_for_all_layers() -> None:
    assert resolve("pmnist", "owm", ["alpha_start=2"]).options["alpha_start"] == {"*": 2.0}
    given = resolve("pmnist", "owm", ['alpha_start={"*" = 1.0, "hidden.0" = 3.0}']).options["alpha_start"]
    assert list(given.items()) == [("hidden.0", 3.0), ("*", 1.0)]
    with pytest.raises(OptionError, match="alpha_decay takes a number above 0 and up to 1, or a table"):
        resolve("pmnist", "owm", ["alpha_decay=2.0"])


def test_one_layer_can_be_set_by_its_name_or_pattern() -> None:
    """As a report names the settings of a run: `alpha_start.*=10000.0`."""

    def alpha(*overrides: str) -> dict[str, float]:
        found: dict[str, float] = resolve("pmnist", "owm", overrides).options["alpha_start"]
        return found

    assert alpha("alpha_start.*=10000.0") == {"*": 1e4}
    assert alpha("alpha_start.hidden.0=3") == {"hidden.0": 3.0, "*": 1.0}
    assert alpha("alpha_start=2", "alpha_start.head=3") == {"head": 3.0, "*": 2.0}
    assert resolve("split-cifar100", "gpm", ["layer_samples.fc1=9"]).options["layer_samples"]["fc1"] == 9
    with pytest.raises(OptionError, match=r"--set alpha_start.head=0: alpha_start.head takes a number above 0"):
        alpha("alpha_start.head=0")
    with pytest.raises(OptionError, match=r"alpha_start.head=1: no such setting of ewc"):
        resolve("pmnist", "ewc", ["alpha_start.head=1"])


def test_a_run_forgets_less_than_without_it(tmp_path: Path) -> None:
    few = ("stream.tasks=2", "training.epochs=3", "network.hidden=[40, 40]")
    assert transfer_of("owm", tmp_path, *few) > transfer_of("finetune", tmp_path, *few) + 0.05
