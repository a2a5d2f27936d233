"""Analytic learning is joint ridge regression, whatever the order of the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from remnant.data import Split
from remnant.evaluation import average_accuracy, backward_transfer
from remnant.experiments.execute import Plan, run
from remnant.experiments.settings import resolve
from remnant.methods import METHODS
from remnant.methods.analytic import Analytic
from remnant.models import Network, build
from remnant.options import OptionError


def network(classes: int | Sequence[int] = 4, bias: bool = False) -> Network:
    return build("mlp", input_shape=(6,), classes=classes, seed=3, hidden=(20,), bias=bias).double()


def data(task: int, count: int = 30) -> Split:
    """A task of one class, as in class-incremental learning."""
    g = torch.Generator().manual_seed(task)
    x = torch.randn(count, 6, generator=g, dtype=torch.float64) + task
    return Split.of(x, torch.full((count,), task))


def learn(method: Analytic, task: int, split: Split, epochs: int = 1, batch: int = 7) -> None:
    method.start(task)
    for epoch in range(epochs):
        method.on_epoch_start(epoch, epochs, 5)
        for part in method.order(split, batch).split(batch):
            method.step(split.x[part], split.y[part])
        method.on_epoch_end()
    method.finish(task, split)


def joint(net: Network, splits: Sequence[Split], ridge: float, outputs: int) -> Tensor:
    """The slow version: numpy's least squares on the features of all examples, with λ's rows appended."""
    with torch.no_grad():
        rows = net.features(torch.cat([split.x for split in splits])).numpy()
    wanted = np.eye(outputs)[torch.cat([split.y for split in splits]).numpy()]
    penalty = np.sqrt(ridge * (rows**2).sum() / rows.shape[1])
    stacked = np.vstack([rows, penalty * np.eye(rows.shape[1])])
    found, *_ = np.linalg.lstsq(stacked, np.vstack([wanted, np.zeros((rows.shape[1], outputs))]), rcond=None)
    return torch.from_numpy(found.T)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ridge", [1e-3, 0.5])
def test_it_equals_joint_ridge_regression_in_any_order(ridge: float, bias: bool) -> None:
    splits = [data(task) for task in range(4)]
    expected = joint(network(bias=bias), splits, ridge, 4)
    for order in list(permutations(range(4)))[::5]:
        method = Analytic(network(bias=bias), ridge=ridge)
        for number, task in enumerate(order):
            learn(method, number, splits[task], epochs=1 + task)  # later epochs change nothing
        assert torch.allclose(method.network.head.weight, expected, rtol=1e-8, atol=1e-10)
        assert not bias or not method.network.head.bias.any()


def test_the_body_stays_as_it_was() -> None:
    method = Analytic(network())
    for task in range(2):
        learn(method, task, data(task))
    assert torch.equal(method.network.hidden[0].weight, network().hidden[0].weight)  # type: ignore[union-attr, index]
    assert method.nbytes == 8 * 20 * (20 + 4)


def test_a_head_of_its_own_is_the_regression_of_its_task() -> None:
    net = network(classes=(2, 3))
    method = Analytic(net, ridge=1e-2)
    splits = [Split.of(data(task).x, torch.arange(30) % classes) for task, classes in enumerate((2, 3))]
    for task, split in enumerate(splits):
        learn(method, task, split)
    for task, (split, classes) in enumerate(zip(splits, (2, 3), strict=True)):
        assert torch.allclose(net.head_of(task).weight, joint(net, [split], 1e-2, classes), rtol=1e-8, atol=1e-10)


def test_digits_one_by_one_are_learnt_in_any_order(tmp_path: Path) -> None:
    ends = []
    for order in ("natural", "shuffled"):
        settings = resolve("digits-incremental", "analytic", [f"stream.class_order={order}"])
        (folder,) = run(Plan(settings, (0,), tmp_path, "cpu"), lambda progress: None)
        matrix = folder.matrix()
        assert matrix is not None
        assert average_accuracy(matrix) > 0.9
        assert backward_transfer(matrix) > -0.12  # a digit is easier while few are known
        ends.append(average_accuracy(matrix))
    assert ends[0] == pytest.approx(ends[1], abs=0.03)  # other examples are held out


def test_settings_are_checked() -> None:
    assert METHODS["analytic"] is Analytic
    assert resolve("mnist-incremental", "analytic").network == {"name": "mlp", "hidden": [2000]}
    with pytest.raises(OptionError, match="ridge takes a number above 0"):
        resolve("mnist-incremental", "analytic", ["ridge=0"])
