"""No protection: the forgetting that every other method is measured against."""

from .base import Method


class Finetune(Method):
    """Plain SGD on one task after another."""

    name = "finetune"
