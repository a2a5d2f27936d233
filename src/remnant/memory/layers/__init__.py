"""The rules for layers: how each type sees its input as rows and its weight as a matrix. Importing a file registers it."""

from . import attention, conv, linear  # noqa: F401
from .registry import LayerView, described_forward, is_norm, register_layer, rule_of, views_of

__all__ = ["LayerView", "described_forward", "is_norm", "register_layer", "rule_of", "views_of"]
