"""iCaRL: herding and class means against slow versions, and its step against autograd of the whole objective."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from remnant.data import Split
from remnant.experiments.execute import Plan, run
from remnant.experiments.settings import resolve
from remnant.methods import ICaRL
from remnant.methods.icarl import herded
from remnant.models import Network, build
from remnant.options import OptionError

CLASSES = (3, 2, 3)


def network() -> Network:
    return build("mlp", input_shape=(6,), classes=CLASSES, seed=3, hidden=(5, 4), bias=True).double()


def data(task: int, count: int = 32) -> Split:
    g = torch.Generator().manual_seed(task)
    x = torch.randn(count, 6, generator=g, dtype=torch.float64)
    return Split.of(x, torch.randint(0, CLASSES[task], (count,), generator=g))


@given(st.integers(0, 20), st.integers(1, 25), st.integers(0, 10**6))
def test_herding_takes_the_best_next_row_each_time(rows: int, count: int, seed: int) -> None:
    features = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chosen: list[int] = []
    while len(chosen) < min(rows, count):
        left = [row for row in range(rows) if row not in chosen]
        distances = [(features[[*chosen, row]].mean(0) - features.mean(0)).norm() for row in left]
        chosen.append(left[int(torch.stack(distances).argmin())])
    assert herded(features, count).tolist() == chosen


def learnt(method: ICaRL, tasks: int) -> list[Split]:
    splits = [data(task) for task in range(tasks)]
    for task, split in enumerate(splits):
        method.start(task)
        for part in torch.arange(32).split(8):
            method.step(split.x[part], split.y[part])
        method.finish(task, split)
    return splits


def test_classes_share_the_memory_and_the_first_chosen_stay() -> None:
    method = ICaRL(network(), lr=0.1, memory=24)
    learnt(method, 1)
    first = [part.clone() for part in method.x.split(method.counts)]
    assert method.counts == [8, 8, 8]
    for task, (share, classes) in ((1, (4, 5)), (2, (3, 8))):
        method.start(task)
        method.finish(task, data(task))
        assert method.counts == [share] * classes
        assert method.labels.tolist() == [c for c in range(classes) for _ in range(share)]
        for old, now in zip(first, method.x.split(method.counts), strict=False):
            assert torch.equal(now, old[:share])
    assert method.nbytes == 24 * (6 * 8 + 8 + 8 * 8) + 8 * (3 * 3 + 2 * 2 + 3 * 3)


def test_the_nearest_mean_of_exemplars_within_the_task_answers() -> None:
    method = ICaRL(network(), lr=0.1, memory=24)
    splits = learnt(method, 2)
    net = method.network
    for task in range(2):
        first = method.mixed.offsets[task]
        means = [net(method.x[method.labels == first + c], task).mean(0) for c in range(CLASSES[task])]
        for x in splits[task].x:
            distances = torch.stack([(net(x[None], task)[0] - mean).norm() for mean in means])
            assert torch.allclose(method.logits(x[None], task)[0], -distances.square())
    assert torch.equal(method.logits(splits[0].x, 2), net(splits[0].x, 2))  # a task without exemplars


def test_a_step_is_sgd_on_the_loss_with_the_distilled_outputs_of_every_past_task() -> None:
    method, theirs = ICaRL(network(), lr=0.125, memory=24, distillation=0.5), network()
    learnt(method, 2)
    theirs.load_state_dict(method.network.state_dict())
    before = network()
    before.load_state_dict(theirs.state_dict())
    method.start(2)
    split = data(2)
    drifts = []
    for part in torch.arange(32).split(8):
        random = torch.get_rng_state()
        method.step(split.x[part], split.y[part])
        torch.set_rng_state(random)
        drawn = torch.arange(5) * 4 + (torch.rand(5) * 4).long()  # 24 // 5 exemplars of each class
        drift = _drift(theirs, before, method.x[drawn], method.labels[drawn])
        loss = F.cross_entropy(theirs(split.x[part], 2), split.y[part]) + 0.5 * 2 * drift  # two past tasks
        parameters = list(theirs.parameters())
        with torch.no_grad():
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p -= 0.125 * g
        drifts.append(float(drift.detach()))
    for p, q in zip(method.network.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-9, atol=1e-12)
    assert drifts[0] == pytest.approx(0, abs=1e-12)
    assert drifts[-1] > 1e-6


def _drift(now: Network, before: Network, x: Tensor, labels: Tensor) -> Tensor:
    found = []
    for one, label in zip(x, labels.tolist(), strict=True):
        task = 0 if label < 3 else 1
        q = before(one[None], task)[0].softmax(0).detach()
        found.append((q * (q.log() - now(one[None], task)[0].log_softmax(0))).sum())
    return torch.stack(found).mean()


def test_distillation_keeps_old_outputs() -> None:
    moved = []
    for distillation in (0.0, 1.0, 10.0):
        torch.manual_seed(0)
        method = ICaRL(network(), lr=0.1, memory=24, distillation=distillation)
        split = learnt(method, 1)[0]
        old = method.network(split.x, 0).softmax(1).detach()
        method.start(1)
        for _ in range(150):
            method.step(data(1).x, data(1).y)
        moved.append(float((method.network(split.x, 0).softmax(1) - old).norm().detach()))
    assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2]


def test_a_class_without_examples_is_never_the_answer() -> None:
    method, split = ICaRL(network(), lr=0.1, memory=24), data(0)
    method.start(0)
    method.finish(0, Split.of(split.x, split.y % 2))
    assert method.counts == [8, 8, 0]
    assert (method.logits(split.x, 0).argmax(1) < 2).all()
    method.start(1)
    assert method.step(data(1).x, data(1).y).isfinite()


def test_one_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="needs the task at test time"):
        run(Plan(resolve("pmnist", "icarl"), (0,), tmp_path, "cpu"), lambda progress: None)


def test_settings_are_checked() -> None:
    settings = resolve("split-cifar100", "icarl").options
    assert (settings["memory"], settings["distillation"]) == (1280, 1.0)
    with pytest.raises(OptionError, match="takes a"):
        resolve("split-cifar100", "icarl", ["distillation=-1"])
