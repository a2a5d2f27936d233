"""Gradient Projection Memory. It needs torch, numpy and safetensors, and no other room of this package."""

from .audit.state import keep_in_eval_mode
from .choices import UNSUPPORTED
from .drift import activation_drift
from .gpm import GPM
from .layers import LayerView, is_norm, register_layer, views_of
from .recall.recognition import Recognition
from .record.inputs import TaskInputs
from .record.recorder import ConsolidationError
from .report import LeakError, MemoryReport, StateError, Truncation, Verification
from .saving import codec
from .steps.constraint import ProjectedLinear, StepProjector
from .subspaces.projection import full_precision
from .subspaces.subspace import RANK_RULES, Subspace
from .subspaces.threshold import by_layer, parse_threshold
from .task_inputs import grow_by, task_inputs
from .weights.discovery import UnsupportedError

__all__ = [
    "GPM",
    "RANK_RULES",
    "UNSUPPORTED",
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
