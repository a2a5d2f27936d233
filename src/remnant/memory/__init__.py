"""Gradient Projection Memory. It needs torch, numpy and safetensors, and no other room of this package."""

from . import codec
from .audit.verification import Verification
from .drift import activation_drift
from .errors import ConsolidationError, LeakError, StateError, UnsupportedError
from .gpm import GPM
from .layers import LayerView, is_norm, keep_in_eval_mode, register_layer, views_of
from .patterns import by_layer
from .precision import full_precision
from .report import MemoryReport
from .step_projector import StepProjector
from .subspace import RANK_RULES, Subspace
from .threshold import parse_threshold

__all__ = [
    "GPM",
    "RANK_RULES",
    "ConsolidationError",
    "LayerView",
    "LeakError",
    "MemoryReport",
    "StateError",
    "StepProjector",
    "Subspace",
    "UnsupportedError",
    "Verification",
    "activation_drift",
    "by_layer",
    "codec",
    "full_precision",
    "is_norm",
    "keep_in_eval_mode",
    "parse_threshold",
    "register_layer",
    "views_of",
]
