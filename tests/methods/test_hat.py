"""HAT's masks, their price, their gradients and what they protect, each against the formula written out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant.data import Split
from remnant.errors import RunError
from remnant.experiments.execute import Plan, run
from remnant.experiments.settings import resolve
from remnant.methods.hat import HAT
from remnant.methods.parts.gradients import clipped
from remnant.methods.parts.partial import masked
from remnant.models import Network, Units, build, linear_chain
from remnant.options import OptionError

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((6,), {"hidden": (9, 8)}),
    "alexnet": ((3, 35, 35), {"width": 2}),  # 2×2 positions of each channel go into the first Linear
    "lenet": ((3, 12, 12), {"width": 4}),
    "resnet18": ((3, 16, 16), {"width": 4}),
}


def network(kind: str = "mlp", classes: int | Sequence[int] = (3, 3, 3), **options: Any) -> Network:
    shape, usual = NETWORKS[kind]
    return build(kind, input_shape=shape, classes=classes, seed=3, **{**usual, **options}).double()


def data(net: Network, count: int = 24, seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *net.input_shape, generator=g, dtype=torch.float64)
    return Split.of(x, torch.randint(0, 3, (count,), generator=g))


def train(method: HAT, task: int, split: Split, epochs: int = 3, batch: int = 8) -> None:
    method.start(task)
    for epoch in range(epochs):
        method.on_epoch_start(epoch, epochs, len(split) // batch)
        for part in method.order(split, batch).split(batch):
            method.step(split.x[part], split.y[part])


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


# --- masks ------------------------------------------------------------------------------------------------------------


def test_a_mask_scales_every_hidden_unit_and_the_test_is_at_s_max() -> None:
    method = HAT(network(), lr=0.1, s_max=3.0)
    x, net = data(method.network).x, method.network
    first, second = torch.sigmoid(3.0 * method.masks.embeddings[1]).split([9, 8])
    hidden = F.relu(net.hidden[0](x)) * first
    hidden = F.relu(net.hidden[1](hidden)) * second
    assert torch.allclose(method.logits(x, 1), net.heads[1](hidden))
    assert not torch.allclose(net(x, 1), method.logits(x, 1))  # nothing stays behind in the network


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_unit_masked_out_reaches_nothing(kind: str) -> None:
    """Whatever makes it can be anything, also where a norm sees its neighbours."""
    method = HAT(network(kind), lr=0.1)
    net, x = method.network.eval(), data(method.network).x
    for embedding in method.masks.embeddings:
        embedding.data = torch.where(embedding > 0, 1.0, -1.0)
    before = method.logits(x, 0)
    for each, mask in zip(method.units, method.masks.hard(0, 400.0).split(method.masks.sizes), strict=True):
        for layer, norm, _ in each.made_by:
            for parameter in (p for module in (layer, norm) if module is not None for p in module.parameters()):
                parameter.data[mask < 0.5] += 3.0
    assert torch.allclose(method.logits(x, 0), before, atol=1e-10)
    assert not torch.allclose(net(x, 0), before, atol=1e-2)


def test_there_is_one_mask_for_each_convolution_of_a_residual_network_but_for_the_shortcuts() -> None:
    units = network("resnet18").wiring()
    assert len(units) == 17
    assert sum(len(each.made_by) for each in units) == 17 + 3
    assert [each.count for each in units] == [4] * 5 + [8] * 4 + [16] * 4 + [32] * 4


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_s_rises_from_its_inverse_to_s_max_within_each_epoch(steps: int) -> None:
    method = HAT(network(), lr=0.1, s_max=50.0)
    split = data(method.network)
    method.start(0)
    for epoch in range(2):
        method.on_epoch_start(epoch, 2, steps)
        for step in range(steps):
            expected = 1 / 50 + (50 - 1 / 50) * step / max(1, steps - 1)
            assert method.scale.item() == pytest.approx(expected, rel=1e-9)
            method.step(split.x[:4], split.y[:4])


def test_the_price_of_a_mask_is_its_share_of_what_no_task_has_used() -> None:
    method = HAT(network(), lr=0.1, sparsity=0.6)
    split = data(method.network)
    past = torch.rand(17, dtype=torch.float64)
    method.masks.past.copy_(past)
    method.start(2)
    method.scale.fill_(1.5)
    a = torch.sigmoid(1.5 * method.masks.embeddings[2])
    with masked(method.units, a.split(method.masks.sizes)):
        plain = F.cross_entropy(method.network(split.x, 2), split.y)
    top = sum(float(a[i].detach()) * (1 - float(past[i])) for i in range(17))
    bottom = sum(1 - float(p) for p in past)
    assert method.loss(split.x, split.y).item() == pytest.approx(plain.item() + 0.6 * top / bottom, rel=1e-12)


def test_no_unit_left_costs_nothing_and_stops_learning_but_for_the_head() -> None:
    method = HAT(network(), lr=0.1)
    split = data(method.network)
    method.masks.past.fill_(1.0)
    before = weights(method.network)
    train(method, 1, split)
    after = weights(method.network)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "heads.1.weight",
        "masks.embeddings.1",
    }
    assert all(tensor.isfinite().all() for tensor in after.values())


def test_masks_are_hard_after_training() -> None:
    method = HAT(network("mlp", hidden=(60, 60)), lr=0.1, s_max=400.0)
    train(method, 0, data(method.network, 80), epochs=10)
    a = method.masks.hard(0, 400.0)
    assert ((a < 0.01) | (a > 0.99)).double().mean() > 0.95
    assert 0.05 < a.mean() < 0.95
    assert method.embedding.abs().max() <= 6


# --- gradients --------------------------------------------------------------------------------------------------------


@given(st.floats(1 / 400, 400), st.integers(0, 1000))
def test_embeddings_step_by_the_compensated_gradient(s: float, seed: int) -> None:
    torch.manual_seed(seed)
    method = HAT(network(), lr=0.125, s_max=400.0)
    split = data(method.network)
    method.start(0)
    method.scale.fill_(s)
    e = method.embedding.detach().clone()
    (gradient,) = torch.autograd.grad(method.loss(split.x, split.y), [method.embedding])
    factor = [400 / s * (math.cosh(min(50.0, max(-50.0, s * v))) + 1) / (math.cosh(v) + 1) for v in e.tolist()]
    expected = e - 0.125 * gradient * torch.tensor(factor, dtype=torch.float64)
    method.step(split.x, split.y)
    assert torch.allclose(method.embedding, expected.clamp(-6, 6), rtol=1e-6, atol=1e-9)


def test_only_the_tasks_own_embedding_and_head_are_trained_beside_the_body() -> None:
    method = HAT(network(), lr=0.1)
    before = weights(method.network)
    train(method, 1, data(method.network))
    after = weights(method.network)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"hidden.0.weight", "hidden.1.weight", "heads.1.weight", "masks.embeddings.1"}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4))
def test_gradients_together_are_cut_to_ten_thousand(values: list[float]) -> None:
    gradients = [torch.tensor([v, 1.0], dtype=torch.float64) for v in values]
    length = math.sqrt(sum(v * v + 1 for v in values))
    for found, given_ in zip(clipped(gradients, 1e4), gradients, strict=True):
        assert torch.allclose(found, given_ * min(1.0, 1e4 / length))


def test_no_step_is_longer_than_the_rate_times_ten_thousand() -> None:
    method = HAT(network(), lr=1e-5, sparsity=1e12)  # a rate at which no embedding comes to ±6
    split = data(method.network)
    method.start(0)
    method.on_epoch_start(0, 1, 10)
    before = weights(method.network)
    method.step(split.x, split.y)
    moved = [after - before[name] for name, after in weights(method.network).items()]
    assert math.isclose(torch.stack([change.norm() for change in moved]).norm(), 1e-5 * 1e4, rel_tol=1e-6)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_weights_share_is_what_its_two_units_leave_free(kind: str, bias: bool) -> None:
    method = HAT(network(kind, bias=bias), lr=0.1)
    net = method.network
    method.masks.past.copy_(torch.rand_like(method.masks.past))
    method.start(1)
    a = dict(zip([_name(net, each) for each in method.units], method.masks.past.split(method.masks.sizes), strict=True))
    named = {name: method.moving[p] for name, p in net.named_parameters() if p in method.moving}
    for name, made, read in WIRES[kind]:
        weight, out = named.pop(f"{name}.weight"), a[made]
        repeats = 1 if read is None else weight.shape[1] // len(a[read])
        for j in range(weight.shape[1]):
            taken = out if read is None else torch.minimum(out, a[read][j // repeats])
            assert torch.allclose(weight[:, j].flatten(1).T if weight.ndim > 2 else weight[:, j], 1 - taken)
        if bias:
            assert torch.allclose(named.pop(f"{name}.bias"), 1 - out)
    assert not named  # norms belong to the first task


def _name(net: Network, units: Units) -> str:
    return next(name for name, module in net.named_modules() if module is units.at)


# Layer, where its units are, where the units are that it reads; typed from the networks' forward passes.
WIRES: dict[str, list[tuple[str, str, str | None]]] = {
    "mlp": [("hidden.0", "hidden.0", None), ("hidden.1", "hidden.1", "hidden.0")],
    "alexnet": [
        ("conv1", "active1", None),
        ("conv2", "active2", "active1"),
        ("conv3", "active3", "active2"),
        ("fc1", "active4", "active3"),
        ("fc2", "active5", "active4"),
    ],
    "lenet": [("conv1", "conv1", None), ("conv2", "conv2", "conv1"), ("fc1", "fc1", "conv2"), ("fc2", "fc2", "fc1")],
    "resnet18": [
        ("stem", "stem_norm", None),
        *(
            wire
            for block, before in [
                ("stage1.0", "stem_norm"),
                ("stage1.1", "stage1.0"),
                *((f"stage{s}.{b}", f"stage{s}.0" if b else f"stage{s - 1}.1") for s in (2, 3, 4) for b in (0, 1)),
            ]
            for wire in (
                (f"{block}.conv1", f"{block}.norm1", before),
                (f"{block}.conv2", block, f"{block}.norm1"),
                *([(f"{block}.shortcut.conv", block, before)] if block in ("stage2.0", "stage3.0", "stage4.0") else []),
            )
        ),
    ],
}


# --- protection -------------------------------------------------------------------------------------------------------


def harden(method: HAT, task: int) -> None:
    """Every mask 0 or 1, as far as float64 can tell; training leaves a few between."""
    e = method.masks.embeddings[task].data
    e.copy_(torch.where(e > 0, e.clamp(min=0.2), e.clamp(max=-0.2)))


@pytest.mark.parametrize(
    ("kind", "options", "bias"),
    [
        ("mlp", {}, False),
        ("mlp", {}, True),
        ("lenet", {}, True),
        ("alexnet", {"norm": "batch"}, True),
        ("alexnet", {"norm": "running"}, False),
        ("resnet18", {"norm": "batch"}, False),
        ("resnet18", {"norm": "running"}, True),
    ],
)
def test_old_answers_stay_while_new_tasks_are_learnt(kind: str, options: dict[str, Any], bias: bool) -> None:
    method = HAT(network(kind, bias=bias, **options), lr=0.05, sparsity=0.0)  # as small as it is, all units would go
    x = data(method.network, seed=9).x  # one batch: with norm="batch" an answer depends on it
    epochs = 10 if options.get("norm") == "running" else 3  # statistics that then hold still must have settled
    answers = []
    for task in range(3):
        split = data(method.network, seed=task)
        before = weights(method.network)
        train(method, task, split, epochs)
        after = weights(method.network)
        body = [name for name in before if _is_layer(name)]
        moved = [name for name in body if (before[name] - after[name]).abs().max() > 1e-4]
        assert len(moved) > len(body) / 2  # a layer of four channels may be full after two tasks
        harden(method, task)
        method.finish(task, split)
        method.network.eval()
        answers.append(method.logits(x, task))
        for earlier in range(task):
            assert torch.allclose(method.logits(x, earlier), answers[earlier], rtol=1e-9, atol=1e-9)
    assert 0 < method.masks.past.mean() < 1


def _is_layer(name: str) -> bool:
    return name.endswith("weight") and not name.startswith(("heads.", "masks.")) and "norm" not in name


@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("kind", ["alexnet", "resnet18"])
def test_norms_learn_in_the_first_task_and_hold_still_from_then_on(kind: str, norm: str) -> None:
    method = HAT(network(kind, norm=norm), lr=0.05, sparsity=0.0)
    states = [weights(method.network)]
    for task in range(3):
        train(method, task, data(method.network, seed=task))
        method.finish(task, data(method.network, seed=task))
        states.append(weights(method.network))
    norms = [name for name in states[0] if "norm" in name]
    assert any(name.endswith("running_mean") for name in norms) == (norm == "running")
    for name in norms:
        initial, first, *later = (state[name] for state in states)
        assert not torch.equal(initial, first)
        assert all(torch.equal(first, other) for other in later)


def test_past_masks_are_the_largest_there_have_been() -> None:
    method = HAT(network(), lr=0.1)
    masks = []
    for task in range(3):
        train(method, task, data(method.network, seed=task))
        method.finish(task, data(method.network))
        masks.append(torch.sigmoid(400 * method.masks.embeddings[task].detach()))
        assert torch.equal(method.masks.past, torch.stack(masks).max(dim=0).values)
    assert method.nbytes == (3 + 1) * 17 * 8


def test_the_state_of_the_network_holds_the_masks() -> None:
    """Early stopping puts back the network's state of the best epoch, and nothing else."""
    method = HAT(network(), lr=0.1, sparsity=0.0)
    split = data(method.network)
    train(method, 0, split)
    best, answer = weights(method.network), method.logits(split.x, 0)
    train(method, 0, split)
    assert not torch.allclose(method.logits(split.x, 0), answer)
    method.network.load_state_dict(best)
    assert torch.equal(method.logits(split.x, 0), answer)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_one_head_for_all_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the task at test time"):
        HAT(network(classes=3), lr=0.1)


def test_a_benchmark_with_one_head_says_why_it_has_no_hat() -> None:
    with pytest.raises(
        OptionError, match=r"hat cannot run on pmnist. hat needs the task at test time.* `remnant list methods`"
    ):
        resolve("pmnist", "hat")


@pytest.mark.parametrize(
    ("benchmark", "lr"), [("split-cifar100", 0.05), ("split-miniimagenet", 0.03), ("five-datasets", 0.1)]
)
def test_recipes_have_the_papers_settings(benchmark: str, lr: float) -> None:
    assert resolve(benchmark, "hat").options == {"lr": lr, "s_max": 400, "sparsity": 0.75}


class Silent(Network):
    def __init__(self) -> None:
        super().__init__((4,), (2, 2))
        self.layer, self.other = nn.Linear(4, 3), nn.Linear(3, 3)
        self.attach_heads(3, bias=False)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.other(F.relu(self.layer(x)))
        return features


class Forgetful(Silent):
    def wiring(self) -> list[Units]:
        return linear_chain((self.layer, None, self.layer))


def test_a_network_that_does_not_say_how_it_is_wired_is_refused() -> None:
    with pytest.raises(ValueError, match="Silent does not say which of its layers reads which"):
        HAT(Silent(), lr=0.1)
    with pytest.raises(ValueError, match=r"Forgetful.wiring leaves out other.weight, other.bias"):
        HAT(Forgetful(), lr=0.1)


# --- whole runs -------------------------------------------------------------------------------------------------------

OWN = """
import torch
from remnant.data import Stream

def stream(seed, head="multi"):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(300, 6, generator=g) for _ in range(2)]
    tasks = [(x, x[:, :3].argmax(1)) for x in x]
    return Stream.from_arrays(tasks, test=0.3, valid=0.2, head=head, classes=3 if head == "single" else None)
"""


def test_two_tasks_from_the_command(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    benchmark = f"{tmp_path / 'own.py'}:stream"
    stopping = ["training.patience=2", "training.factor=2", "training.lr_min=0.01", "training.batch=10"]
    settings = resolve(benchmark, "hat", ["training.epochs=15", "network.hidden=[100, 100]", *stopping])
    (folder,) = run(Plan(settings, (0,), tmp_path, "cpu"), lambda progress: None)
    matrix, result = folder.matrix(), folder.result()
    assert matrix is not None
    assert result is not None
    assert result["acc"] > 0.6
    assert abs(result["bwt"]) < 0.05
    assert result["memory_bytes"] == 3 * 200 * 4
    with pytest.raises(RunError, match=r"hat on .*needs the task at test time"):
        run(Plan(resolve(benchmark, "hat", ["stream.head=single"]), (0,), tmp_path, "cpu"), lambda progress: None)


def test_two_tasks_of_small_pictures_on_the_residual_network_of_five_datasets() -> None:
    net = build("resnet18", input_shape=(3, 16, 16), classes=(10, 10), seed=1, width=4, stem_stride=1, norm="batch")
    method = HAT(net, **resolve("five-datasets", "hat").options)
    g = torch.Generator().manual_seed(0)
    answer, first = torch.zeros(0), Split.of(torch.zeros(0), torch.zeros(0))
    for task in range(2):
        y = torch.arange(80) % 10
        split = Split.of(torch.randn(80, 3, 16, 16, generator=g) + torch.randn(10, 3, 16, 16, generator=g)[y], y)
        train(method, task, split, epochs=8, batch=20)
        method.finish(task, split)
        method.network.eval()
        assert F.cross_entropy(method.logits(split.x, task), y) < 2.0
        if task == 0:
            answer, first = method.logits(split.x, 0), split
    moved = (method.logits(first.x, 0) - answer).abs().mean() / answer.abs().mean()
    assert moved < 0.05
