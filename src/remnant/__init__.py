"""Learn one task after another without forgetting: Gradient Projection Memory for any PyTorch model."""

from typing import TYPE_CHECKING

from remnant.lazy import lazy_exports

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

if TYPE_CHECKING:
    from remnant.memory import (
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
else:
    __getattr__, __dir__ = lazy_exports(__name__, dict.fromkeys(__all__, ".memory"))
