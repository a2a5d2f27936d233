"""No protection at all: what is forgotten, everything else is measured against."""

from torch import Tensor

from .base import Method


class Finetune(Method):
    """Plain SGD on one task after another."""

    name = "finetune"

    def remaining(self) -> dict[str, Tensor]:
        return {}
