"""Learn one task after another without forgetting: Gradient Projection Memory for any PyTorch model."""

from .memory import (
    GPM,
    ConsolidationError,
    LayerView,
    LeakError,
    MemoryReport,
    StateError,
    Subspace,
    UnsupportedError,
    Verification,
    register_layer,
)

__version__ = "0.1.0"

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
