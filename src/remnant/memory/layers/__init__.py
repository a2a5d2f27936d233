"""The rules for layers: how each type sees its input as rows and its weight as a matrix. Importing a file registers it."""

from . import attention, conv, embedding, linear
from .norm import allow_train_mode, keep_in_eval_mode
from .registry import LayerView, has_own_rule, has_rule, is_norm, register_layer, views_of

__all__ = [
    "LayerView",
    "allow_train_mode",
    "attention",
    "conv",
    "embedding",
    "has_own_rule",
    "has_rule",
    "is_norm",
    "keep_in_eval_mode",
    "linear",
    "register_layer",
    "views_of",
]
