"""Options for every method that needs some, small enough for a test, and the stream that a method sees first."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from remnant.data import Split, Stream, Task
from remnant.methods import Method

M = TypeVar("M", bound=Method)

OPTIONS: dict[str, dict[str, Any]] = {
    "gpm": {"threshold": {"value": 0.9}, "samples": 40},
    "sgp": {"threshold": {"value": 0.9}, "samples": 40},
    "trgp": {"threshold": {"value": 0.9}, "samples": 40, "trust": 0.1},
    "dfgpm": {"threshold": {"value": 0.9}, "samples": 40},
    "dfsgp": {"threshold": {"value": 0.9}, "samples": 40},
    "dftrgp": {"threshold": {"value": 0.9}, "samples": 40, "trust": 0.1},
    "cuber": {"threshold": {"value": 0.9}, "samples": 40, "trust": 0.1, "agreement": -1.0},
    "fs-dgpm": {"threshold": {"value": 0.9}, "samples": 40, "memory": 20},
    "adam-nscl": {"tolerance": 100.0, "samples": 40},
    "api": {"threshold": {"value": 0.9}, "samples": 40, "room": 6, "aim": 1.0},
    "rogo": {"threshold": {"value": 0.9}, "samples": 40},
    "dfrogo": {"threshold": {"value": 0.9}, "samples": 40},
    "code-cl": {"samples": 40, "free": 3, "alike": 0.0},
    "ewc": {"strength": 10.0, "fisher_batch": 4},
    "hat": {"s_max": 10.0},  # hard masks may leave none of two channels
    "er": {"memory": 20},
    "agem": {"memory": 20, "memory_batch": 8},
    "mega-i": {"memory": 20, "memory_batch": 8},
    "mega-ii": {"memory": 20, "memory_batch": 8},
    "mer": {"memory": 20, "memory_batch": 8, "at_once": 4},
    "icarl": {"memory": 20},
    "gem": {"memory": 20},
    "ogd": {"samples": 15},
    "owm": {"alpha_start": {"*": 1.0}, "alpha_decay": {"*": 0.1}},
    "apd": {"retention": 1.0},  # with 100, plain SGD diverges at the rates of these tests
    "packnet": {"retrain": 1},
    "den": {"grow": {"*": 3}, "split": {"*": 2}},
    "rcl": {"trials": 1, "most": {"*": 3}},
    "dgr": {"hidden": [8], "latent": 3},
    "dgdmn": {"slots": 2, "samples": 100, "sleep": 1, "hidden": [8], "latent": 3},
    "space": {"threshold": 0.5, "samples": 40, "retrain": 1},  # leaves some filters of few
}


def announced(method: M, *splits: Split, tasks: int = 3) -> M:
    """Shows a method its stream, as a run does before the first task: these training sets, or random ones."""
    net, g = method.network, torch.Generator().manual_seed(3)
    if not splits:
        like = net.example
        xs = [torch.randn(40, *net.input_shape, generator=g).to(like) for _ in range(tasks)]
        splits = tuple(Split.of(x, torch.randint(0, min(net.classes), (40,), generator=g)) for x in xs)
    parts = tuple(Task(f"task {n}", net.classes[0], split, split, split) for n, split in enumerate(splits))
    sizes = net.classes[:1] * len(parts) if net.multi_head else net.classes
    method.curriculum(Stream("announced", parts, "multi" if net.multi_head else "single", net.input_shape, sizes))
    return method
