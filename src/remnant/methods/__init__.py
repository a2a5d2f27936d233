"""Methods by name. A new one is one file here, one line in METHODS and one entry in a recipe."""

from .base import Method
from .finetune import Finetune
from .gpm import GPM
from .multitask import Multitask
from .single_task import SingleTask

METHODS: dict[str, type[Method]] = {method.name: method for method in (GPM, Finetune, Multitask, SingleTask)}

__all__ = ["GPM", "METHODS", "Finetune", "Method", "Multitask", "SingleTask"]
