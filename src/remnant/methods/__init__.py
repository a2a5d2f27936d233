"""Methods by name. A new one is one file here, an import and a place in METHODS, and one entry in a recipe."""

from .agem import AGEM
from .base import Method
from .er import ER
from .ewc import EWC
from .finetune import Finetune
from .gem import GEM
from .gpm import GPM
from .hat import HAT
from .multitask import Multitask
from .ogd import OGD
from .owm import OWM
from .single_task import SingleTask

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (GPM, Finetune, Multitask, SingleTask, EWC, HAT, GEM, AGEM, ER, OGD, OWM)
}

__all__ = [
    "AGEM",
    "ER",
    "EWC",
    "GEM",
    "GPM",
    "HAT",
    "METHODS",
    "OGD",
    "OWM",
    "Finetune",
    "Method",
    "Multitask",
    "SingleTask",
]
