"""Options for every method that needs some, small enough for a test."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, dict[str, Any]] = {
    "gpm": {"threshold": {"value": 0.9}, "samples": 40},
    "sgp": {"threshold": {"value": 0.9}, "samples": 40},
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
