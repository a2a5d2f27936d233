"""Continual-learning methods by name. `METHODS["gpm"]` is a class; a file of your own works too: `METHODS["file.py:Name"]`."""

from remnant.registry import Registry

from .agem import AGEM
from .base import Method
from .er import ER
from .ewc import EWC
from .finetune import Finetune
from .gem import GEM
from .gpm import GradientProjection
from .hat import HAT
from .multitask import Multitask
from .ogd import OGD
from .optimizers import OPTIMIZERS
from .owm import OWM
from .single_task import SingleTask

METHODS: Registry[type[Method]] = Registry("method", "remnant.methods")
for _method in (GradientProjection, Finetune, Multitask, SingleTask, EWC, HAT, GEM, AGEM, ER, OGD, OWM):
    METHODS[_method.name] = _method

__all__ = [
    "AGEM",
    "ER",
    "EWC",
    "GEM",
    "HAT",
    "METHODS",
    "OGD",
    "OPTIMIZERS",
    "OWM",
    "Finetune",
    "GradientProjection",
    "Method",
    "Multitask",
    "SingleTask",
]
