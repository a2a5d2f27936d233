"""Gradient Projection Memory. Needs torch, numpy and safetensors, and nothing else of this package."""

from .audit.verification import Verification
from .errors import ConsolidationError, LeakError, StateError, UnsupportedError
from .gpm import GPM
from .layers.registry import LayerView, register_layer
from .report import MemoryReport
from .subspace import Subspace

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
