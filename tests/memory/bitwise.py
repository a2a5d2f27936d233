"""Copies a state, and compares two states bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def frozen_copy(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: frozen_copy(value) for key, value in state.items()}
    return [frozen_copy(value) for value in state] if isinstance(state, list) else state


def same(a: Any, b: Any) -> bool:
    assert not isinstance(a, tuple)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
