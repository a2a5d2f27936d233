"""Methods that hold the weights of old tasks hold them under every optimizer, or refuse it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_nets import data, learn_task, network

from remnant.data import Split
from remnant.methods import METHODS, Method
from remnant.methods.hat import HAT
from small_options import OPTIONS, announced

OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.05},
    {"name": "adam", "weight_decay": 0.05},
    {"name": "adamw", "weight_decay": 0.05},
    {"name": "rmsprop", "momentum": 0.5, "weight_decay": 0.05},
]
EXACT: dict[str, dict[str, Any]] = {
    "packnet": OPTIONS["packnet"],
    "space": OPTIONS["space"],
    "wsn": {},
    "pgn": {},
    "rcl": OPTIONS["rcl"],
    "den": {**OPTIONS["den"], "zero": 1e6},  # selects no old unit: retraining moves them on purpose
    "hat": {"s_max": 400.0},
}
LR = 0.002
NAMES = [each["name"] for each in OPTIMIZERS]


def learner(name: str, optimizer: dict[str, Any], options: dict[str, Any]) -> Method:
    torch.manual_seed(0)
    method = announced(METHODS[name](network(bias=True), lr=LR, **options))
    method.use_optimizer(**optimizer)
    if isinstance(method, HAT):  # a mask between 0 and 1 protects a part of a weight only
        for embedding in method.masks.embeddings:
            embedding.data = torch.where(embedding > 0, 3.0, -3.0).to(embedding)
    return method


def learnable(task: int) -> Split:
    x = data(seed=task).x
    return Split.of(x, x[:, task : task + 3].argmax(1))


def learn(method: Method, task: int, split: Split, epochs: int = 4) -> None:
    learn_task(method, task, split, epochs=epochs, lr=LR)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
@pytest.mark.parametrize("name", EXACT)
def test_old_outputs_never_change(name: str, optimizer: dict[str, Any]) -> None:
    method = learner(name, optimizer, EXACT[name])
    x, outputs = data(seed=9).x, []
    for task in range(3):
        learn(method, task, learnable(task))
        with torch.no_grad():
            outputs.append(method.logits(x, task))
            assert outputs[0].std(0).min() > 1e-3  # its body takes part
            for earlier in range(task):
                assert torch.equal(method.logits(x, earlier), outputs[earlier])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
@pytest.mark.parametrize("name", ["api", "cuber", "remnant-recall"])
def test_an_optimizer_that_would_move_them_is_refused(name: str, optimizer: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=rf"only with plain SGD, not with {optimizer['name']}\. Remove --set optimizer"
    ):
        learner(name, optimizer, OPTIONS.get(name, {}))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
def test_den_moves_nothing_that_became_fixed_within_a_task(optimizer: dict[str, Any]) -> None:
    """The momentum of entries that were free in an earlier part of the task moves them no more."""
    method: Any = learner("den", optimizer, OPTIONS["den"])
    learn(method, 0, learnable(0))
    method.start(1)
    split, held = learnable(1), 0
    for epoch in range(10):
        method.on_epoch_start(epoch, 10, 5)
        before = [p.detach().clone() for p in method.moving]
        for rows in torch.arange(40).split(8):
            method.step(split.x[rows], split.y[rows])
        for (p, moving), old in zip(method.moving.items(), before, strict=True):
            assert torch.equal(p[moving == 0], old[moving == 0])
            held += int((moving == 0).sum())
    assert held


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
def test_a_soft_mask_scales_the_step_whatever_the_optimizer_does(optimizer: dict[str, Any]) -> None:
    moved = []
    for past in (0.0, 0.75):
        torch.manual_seed(0)
        method = HAT(network(), lr=0.01, s_max=10.0)
        method.use_optimizer(**optimizer)
        method.masks.past.fill_(past)
        method.start(0)
        before = [p.detach().clone() for p in method.moving]
        method.step(data().x, data().y)
        moved.append(torch.cat([(p - old).flatten() for p, old in zip(method.moving, before, strict=True)]))
    assert torch.allclose(moved[1], 0.25 * moved[0], rtol=1e-6, atol=1e-12)
