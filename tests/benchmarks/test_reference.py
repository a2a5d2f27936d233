"""The loop that benchmarks compare with learns the same weights as ours: what is timed is the same work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from remnant.accelerated.manual_backward import ManualBackwardSteps
from remnant.data import Split
from remnant.methods import METHODS
from remnant.models import Network, build
from remnant.training import EagerSteps

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from reference import Reference

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"input_shape": (1, 6, 6), "hidden": (14, 12)},
    "alexnet": {"input_shape": (3, 20, 20), "width": 2, "dropout": (0.0, 0.0), "norm": "batch"},
    "resnet18": {"input_shape": (3, 16, 16), "width": 2, "norm": "batch"},
}
FIRST = {"mlp": "hidden.0", "alexnet": "conv1", "resnet18": "stem"}


def data(shape: tuple[int, ...], task: int) -> Split:
    generator = torch.Generator().manual_seed(task)
    return Split.of(
        torch.randn(24, *shape, generator=generator, dtype=torch.float64),
        torch.randint(0, 4, (24,), generator=generator),
    )


def network(name: str, heads: int) -> Network:
    return build(name, classes=4 if heads == 1 else [4] * heads, seed=2, **NETWORKS[name]).double()


@pytest.mark.parametrize(
    ("name", "heads", "kind"),
    [("mlp", 1, ManualBackwardSteps), ("alexnet", 3, EagerSteps), ("resnet18", 3, EagerSteps)],
)
def test_three_tasks_end_with_the_same_weights(name: str, heads: int, kind: Any) -> None:
    torch.manual_seed(5)
    reference = Reference(
        network(name, heads), lr=0.05, threshold=lambda *_: 0.8, samples=10, layer_samples={FIRST[name]: 5, "*": 9}
    )
    tasks = [data(NETWORKS[name]["input_shape"], task) for task in range(3)]
    for task in tasks:
        for _ in range(2):
            for _ in reference.epoch(task.x, task.y, 8):
                pass
        reference.finish(task.x)

    torch.manual_seed(5)
    ours = METHODS["gpm"](
        network(name, heads),
        lr=0.05,
        threshold={"value": 0.8},
        samples=10,
        layer_samples={FIRST[name]: 5, "*": 9},
        rank_rule="authors",
    )
    for number, task in enumerate(tasks):
        ours.start(number)
        steps = kind(ours, task, 8)
        for _ in range(2):
            for _ in steps.epoch():
                pass
        ours.finish(number, task)

    assert {layer: basis.shape[1] for layer, basis in reference.bases.items()} == {
        layer: sum(added) for layer, added in ours.ranks().items()
    }
    # Our bases are kept in float32, whatever the weights.
    for (which, a), b in zip(reference.network.named_parameters(), ours.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text, which=which: f"{which}: {text}")
