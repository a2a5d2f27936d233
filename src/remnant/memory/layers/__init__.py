"""The rules for layers: how each type sees its input as rows and its weight as a matrix. Importing a file registers it."""

from . import attention, conv, embedding, linear  # noqa: F401
from .norm import allow_train_mode, keep_in_eval_mode
from .registry import LayerView, has_rule, is_norm, register_layer, views_of

__all__ = [
    "LayerView",
    "allow_train_mode",
    "has_rule",
    "is_norm",
    "keep_in_eval_mode",
    "register_layer",
    "views_of",
]
