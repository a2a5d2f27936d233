"""Trust region gradient projection: its formulas written out, what never moves, and the public code's faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from slow_trgp import SlowTRGP
from small_nets import SHAPES, data, network, train
from small_runs import resumed_to_the_same_matrix
from torch import nn

from remnant.memory import Subspace
from remnant.methods import METHODS
from remnant.methods.gpm import GradientProjection
from remnant.methods.parts.scaled import ScaledLayer, Scaling, adding
from remnant.methods.trgp import TRGP
from remnant.models import Network
from small_options import OPTIONS, announced

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def trgp(net: Network, kind: str = "mlp", **options: Any) -> TRGP:
    given = {"lr": 0.125, "threshold": {"value": 0.8}, "samples": 1000, "trust": 0.1, **options}
    return announced(TRGP(net, **given), *(data(kind, task) for task in range(3)))


def learn(method: Any, tasks: int, kind: str = "mlp") -> None:
    for task in range(tasks):
        method.start(task)
        train(method, data(kind, task))
        method.finish(task, data(kind, task))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", [nn.Linear(5, 4), nn.Conv2d(3, 4, 2, stride=2, padding=1)])
def test_a_scaled_layer_computes_with_its_weight_and_the_change(layer: Any, bias: bool) -> None:
    layer = layer.double()
    if not bias:
        layer = type(layer)(5, 4, bias=False) if isinstance(layer, nn.Linear) else nn.Conv2d(3, 4, 2, bias=False)
        layer = layer.double()
    scaled = ScaledLayer.of(layer)
    assert scaled is not None
    W = scaled.matrix(list(layer.parameters())).detach()
    B = torch.linalg.qr(torch.randn(W.shape[1], 3, dtype=torch.float64))[0]
    D, E = (torch.randn(n, n, dtype=torch.float64, requires_grad=True) for n in (2, 1))
    x = torch.randn(6, 5, dtype=torch.float64) if isinstance(layer, nn.Linear) else torch.randn(6, 3, 5, 5).double()
    with adding({scaled: Scaling(B, scaled.image(B), [D, E])}):
        output = layer(x)
    whole = W + W @ B @ torch.block_diag(D, E) @ B.T
    with torch.no_grad():
        layer.weight.copy_(whole[:, : scaled.view.inputs].reshape(layer.weight.shape))
        if bias:
            layer.bias.copy_(whole[:, -1])
    torch.testing.assert_close(output, layer(x))
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(output.square().sum(), [D, E]))


def test_it_is_the_algorithm_written_out() -> None:
    ours, theirs = network(), network()
    method, slow = trgp(ours), SlowTRGP(theirs, 0.125, 0.8, 0.1)
    for task in range(3):
        split = data(seed=task)
        method.start(task)
        slow.start(task, split)
        for part in torch.arange(40).split(8):
            method.step(split.x[part], split.y[part])
            slow.step(split.x[part], split.y[part], task)
        method.finish(task, split)
        slow.finish(split.x, task)
        for n, layer in enumerate(theirs.hidden):  # type: ignore[arg-type]
            torch.testing.assert_close(ours.hidden[n].weight, layer.weight, rtol=1e-7, atol=1e-9)  # type: ignore[index]
        for old in range(task + 1):
            torch.testing.assert_close(method.logits(split.x, old), slow.logits(split.x, old), rtol=1e-6, atol=1e-8)
        assert [int(sum(added)) for added in method.ranks().values()] == [M.shape[1] for M in slow.M]
    pairs = [pair for task in slow.Q for layer in task for pair in layer]
    assert len(pairs) >= 4
    assert all(not torch.allclose(Q, torch.eye(len(Q), dtype=torch.float64), atol=1e-3) for _, Q in pairs)


@pytest.mark.parametrize("kind", SHAPES)
def test_without_trust_it_is_gpm(kind: str) -> None:
    ends = []
    for make in (lambda net: trgp(net, kind, trust=10.0, rank_rule="paper"), None):
        net = network(kind)
        options: dict[str, Any] = {"lr": 0.125, "threshold": {"value": 0.8}, "samples": 1000}
        torch.manual_seed(0)
        method = make(net) if make else GradientProjection(net, **options)
        learn(method, 3, kind)
        ends.append([p for name, p in net.named_parameters() if "scales" not in name])
        assert method.capacity == 1
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", SHAPES)
def test_scaled_weights_of_old_tasks_never_move_inside_the_memory(kind: str) -> None:
    """W·B_j is constant, and so is the whole change that a task adds to its weights."""
    method = trgp(network(kind, bias=True), kind)
    learn(method, 2, kind)
    g = torch.Generator().manual_seed(5)
    inputs = {
        layer: torch.randn(4, *layer.view.weight.shape[1:], generator=g).double() for layer in method.layers.values()
    }
    scalings = method.scalings(1)
    before = {layer: layer.addition(scaling)(inputs[layer]) for layer, scaling in scalings.items()}
    assert len(before) >= 2
    method.start(2)
    train(method, data(kind, 2))
    for layer, scaling in method.scalings(1).items():
        torch.testing.assert_close(layer.addition(scaling)(inputs[layer]), before[layer], rtol=1e-9, atol=1e-10)
    matrices = [Q.numel() for Q in method.scales.values()]
    assert method.capacity == 1 + sum(matrices) / method.base_size
    assert method.nbytes > method.memory.report().nbytes + 8 * sum(matrices)


def test_only_the_tasks_own_matrices_train() -> None:
    method = trgp(network())
    learn(method, 2)
    method.start(2)
    before = {name: Q.detach().clone() for name, Q in method.scales.items()}
    train(method, data(seed=2))
    moved = {name for name, Q in method.scales.items() if not torch.equal(Q, before[name])}
    assert moved == {name for name in before if name.startswith("2 ")} != set()


@pytest.mark.parametrize("capacity", [8, 30])
def test_the_ranked_rule_adds_the_new_directions_among_the_strongest(capacity: int) -> None:
    g = torch.Generator().manual_seed(capacity)
    first, second = (torch.randn(20, capacity, generator=g, dtype=torch.float64) for _ in range(2))
    scale = torch.linspace(0.05, 1, capacity, dtype=torch.float64)
    subspace = Subspace(capacity)
    subspace.grow((first * scale).mT @ (first * scale), 0.7, "ranked")
    basis, rows = subspace.basis.clone(), second * scale.flip(0)
    added = subspace.grow(rows.mT @ rows, 0.7, "ranked")
    energies = [*(rows @ basis).square().sum(0), *torch.linalg.svdvals(rows - rows @ basis @ basis.mT).square()]
    order = sorted(range(len(energies)), key=lambda i: -energies[i])
    total, new = 0.0, 0
    for i in order:
        if total >= 0.7 * float(rows.square().sum()):
            break
        total += float(energies[i])
        new += i >= basis.shape[1]
    assert added == new > 0


def test_the_public_codes_faults_are_switches() -> None:
    method = trgp(network(), strongest_unprotected=True)
    learn(method, 2)
    for name, added in method.ranks().items():
        weights = method.memory.subspaces[name].weights  # type: ignore[union-attr]
        assert weights.tolist() == [0.0 if added[1] and n == added[0] else 1.0 for n in range(sum(added))]
    method = trgp(network(), third_trusts_second=True)
    learn(method, 3)
    assert {old for tasks in method.trusted["2"].values() for old in tasks} == {1}
    method = trgp(network(), first_layer_decides=True)
    method.trusted_basis = lambda tasks, layer: torch.full(  # type: ignore[method-assign]
        (method.layers[layer].view.inputs, 1), float(layer != "hidden.0"), dtype=torch.float64
    )
    learn(method, 2)
    assert method.trusted["1"] == {}
    assert trgp(network(), scaled=["hidden.1"]).layers.keys() == {"hidden.1"}
    with_q, without = trgp(network()), trgp(network(), unscaled_inputs=True)
    for each in (with_q, without):
        learn(each, 2)
    assert with_q.chosen["0"].keys() == without.chosen["0"].keys()
    inputs = [method.memory.subspaces["hidden.1"] for method in (with_q, without)]
    assert not torch.allclose(inputs[0].remove(torch.eye(10)), inputs[1].remove(torch.eye(10)), atol=1e-6)  # type: ignore[union-attr]


def test_killed_in_a_task_it_resumes_to_the_same_matrix(tmp_path: Path) -> None:
    few = ("training.epochs=3", "training.batch=10", "trust=0.1", "threshold=0.8", "training.patience=1")
    few = (*few, "training.factor=2", "training.lr_min=1e-9")  # early stopping restores the best Q
    assert resumed_to_the_same_matrix("trgp", tmp_path, *few)["capacity"] > 1


@pytest.mark.parametrize("name", ["trgp", "dftrgp", "cuber"])
def test_the_memory_keeps_ordered_directions_and_no_copies_of_tasks(name: str) -> None:
    """`GPM.recall` would need the heads, the scale matrices and first inputs of each task: nothing here reads them."""
    torch.manual_seed(0)
    method: Any = announced(
        METHODS[name](network(), lr=0.05, **OPTIONS.get(name, {})), *(data(seed=n) for n in range(3))
    )
    learn(method, 3)
    assert method.memory.state_dict()["recall"] is None
    assert all(each.ordered for each in method.memory.subspaces.values())
    assert method.memory.report().nbytes == sum(each.nbytes for each in method.memory.subspaces.values())
    chosen = sum(rows.nbytes for layers in method.chosen.values() for rows in layers.values())
    scales = sum(D.nbytes for D in method.scales.values())
    last = sum(G.nbytes for layers in getattr(method, "last", {}).values() for G in layers.values())
    assert method.nbytes == method.memory.report().nbytes + chosen + scales + last
