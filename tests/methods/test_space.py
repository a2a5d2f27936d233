"""SPACE's choice of filters against a regression by hand, and filters that never move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_nets import data_for, learn_task

from remnant.data import Split
from remnant.experiments.settings import resolve
from remnant.methods.space import SPACE, new_filters
from remnant.models import Network, build
from remnant.options import OptionError

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((6,), {"hidden": (9, 8), "bias": True}),
    "alexnet": ((3, 35, 35), {"width": 2}),  # 2×2 positions of each channel go into the first Linear
    "lenet": ((3, 12, 12), {"width": 4}),
    "resnet18": ((3, 16, 16), {"width": 4}),
}


def network(kind: str = "mlp", classes: Sequence[int] = (3, 3, 3), **options: Any) -> Network:
    shape, usual = NETWORKS[kind]
    return build(kind, input_shape=shape, classes=classes, seed=3, **{**usual, **options}).double()


def learn(method: SPACE, task: int, split: Split, epochs: int = 3, lr: float = 0.05) -> None:
    learn_task(method, task, split, epochs=epochs, lr=lr)


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("old", [0, 1, 4, 9, 10])
def test_filters_are_counted_as_by_regression_and_svd(old: int, threshold: float) -> None:
    """The slow version regresses the examples themselves on the old filters, and decomposes what remains."""
    rng = np.random.default_rng(old)
    outputs = rng.normal(size=(200, 10)) @ rng.normal(size=(10, 10)) * np.geomspace(1, 0.05, 10) + 3
    outputs -= outputs.mean(0)
    new = outputs[:, old:]
    rest = new - outputs[:, :old] @ np.linalg.lstsq(outputs[:, :old], new, rcond=None)[0] if old else new
    energy = np.linalg.svd(rest, compute_uv=False) ** 2 if new.size else np.zeros(0)
    explained, count = (new**2).sum() - (rest**2).sum(), 0
    while count < len(energy) and explained < threshold * (new**2).sum() * (1 - 1e-12):
        explained += energy[count]
        count += 1
    covariance = torch.from_numpy(outputs).T.cov()
    assert new_filters(covariance, old, threshold) == (max(count, 1) if old == 0 else count)


@pytest.mark.parametrize("kind", NETWORKS)
def test_covariances_are_of_the_outputs_before_the_relu(kind: str) -> None:
    method = SPACE(network(kind), samples=1000)
    split, outputs = data_for(method.network, 0), []
    first = method.units[0].made_by[0].layer
    handle = first.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    found = method.covariances(split)
    handle.remove()
    rows = outputs[0].movedim(1, -1).flatten(0, -2).numpy()
    assert np.allclose(found[0], np.cov(rows, rowvar=False), rtol=1e-8)
    assert [len(each) for each in found] == [units.count for units in method.units]
    assert method.network.training


# --- what stays -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [None, {"name": "adamw", "weight_decay": 0.1}])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("mlp", {}), ("lenet", {}), ("resnet18", {}), ("alexnet", {"norm": "running"}), ("alexnet", {"norm": "batch"})],
)
def test_old_filters_never_move_and_old_outputs_never_change(kind: str, options: Any, optimizer: Any) -> None:
    method = SPACE(network(kind, **options), threshold=0.7, retrain=1)
    if optimizer:
        method.use_optimizer(**optimizer)
    x, outputs, filters = data_for(method.network, 9).x, [], []
    layers = [(units, layer) for units in method.units for layer, _, _ in units.made_by]
    for task in range(3):
        learn(method, task, data_for(method.network, task), epochs=2, lr=0.01)
        widths = dict(zip(method.units, method.widths[task], strict=True))
        filters.append([p[: widths[units]].detach().clone() for units, layer in layers for p in layer.parameters()])
        with torch.no_grad():
            outputs.append(method.logits(x, task))
            for earlier in range(task):
                assert torch.equal(method.logits(x, earlier), outputs[earlier])
        now = [p for _, layer in layers for p in layer.parameters()]
        for kept in filters:
            assert all(torch.equal(p[: len(old)], old) for p, old in zip(now, kept, strict=True))
    assert all(a <= b for a, b in zip(method.widths[0], method.widths[1], strict=True))
    assert any(a < b for a, b in zip(method.widths[0], method.widths[2], strict=True))


def test_a_task_uses_the_first_filters_alone() -> None:
    method = SPACE(network(), threshold=0.7, retrain=1)
    for task in range(2):
        learn(method, task, data_for(method.network, task))
    x, net = data_for(method.network, 9).x, method.network
    for task in range(2):
        first, second = method.widths[task]
        hidden = F.relu(x @ net.hidden[0].weight[:first].T + net.hidden[0].bias[:first])  # type: ignore[index, union-attr]
        hidden = F.relu(hidden @ net.hidden[1].weight[:second, :first].T + net.hidden[1].bias[:second])  # type: ignore[index, union-attr]
        expected = hidden @ net.heads[task].weight[:, :second].T + net.heads[task].bias  # type: ignore[operator]
        assert torch.allclose(method.logits(x, task), expected)
    first, second = method.widths[0]
    assert first < 9
    assert not net.hidden[1].weight[:second, first:].any()  # type: ignore[index, union-attr]


def test_settings_are_checked() -> None:
    assert "patience" not in resolve("split-cifar100", "space").training
    with pytest.raises(OptionError, match="needs the task at test time"):
        resolve("pmnist", "space")
