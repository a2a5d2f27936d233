"""Gradient Projection Memory. It needs torch, numpy and safetensors, and no other room of this package."""

from . import codec
from .audit.state import keep_in_eval_mode
from .constraint import ProjectedLinear, StepProjector
from .discovery import UnsupportedError
from .drift import activation_drift
from .gpm import GPM
from .layers import LayerView, is_norm, register_layer, views_of
from .projection import full_precision
from .recognition import Recognition
from .record.recorder import ConsolidationError
from .report import LeakError, MemoryReport, Truncation, Verification
from .state import StateError
from .subspace import RANK_RULES, Subspace
from .task_inputs import TaskInputs, grow_by, task_inputs
from .threshold import by_layer, parse_threshold

__all__ = [
    "GPM",
    "RANK_RULES",
    "ConsolidationError",
    "LayerView",
    "LeakError",
    "MemoryReport",
    "ProjectedLinear",
    "Recognition",
    "StateError",
    "StepProjector",
    "Subspace",
    "TaskInputs",
    "Truncation",
    "UnsupportedError",
    "Verification",
    "activation_drift",
    "by_layer",
    "codec",
    "full_precision",
    "grow_by",
    "is_norm",
    "keep_in_eval_mode",
    "parse_threshold",
    "register_layer",
    "task_inputs",
    "views_of",
]
