"""Gradient Projection Memory. Needs torch, numpy and safetensors, and nothing else of this package."""

from .errors import ConsolidationError, LeakError, StateError, UnsupportedError
from .gpm import GPM
from .layers import LayerView, register_layer
from .report import MemoryReport
from .subspace import Subspace
from .verification import Verification

__all__ = [
    "GPM",
    "ConsolidationError",
    "LayerView",
    "LeakError",
    "MemoryReport",
    "StateError",
    "Subspace",
    "UnsupportedError",
    "Verification",
    "register_layer",
]
