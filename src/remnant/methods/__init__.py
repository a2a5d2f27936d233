"""Continual-learning methods by name. `METHODS["gpm"]` is a class; a file of your own works too: `METHODS["file.py:Name"]`."""

from remnant.registry import Registry

from .agem import AGEM
from .analytic import Analytic
from .apd import APD
from .api import API
from .base import Method
from .baselines import Finetune, Multitask, SingleTask
from .codecl import CodeCL
from .cuber import CUBER
from .den import DEN
from .dfgp import DFGPM, DFROGO, DFSGP, DFTRGP
from .dgdmn import DGDMN
from .dgr import DGR
from .er import ER
from .ewc import EWC
from .fsdgpm import FSDGPM
from .gem import GEM
from .gpm import GradientProjection
from .hat import HAT
from .icarl import ICaRL
from .mas import MAS
from .mega import MEGA1, MEGA2
from .mer import MER
from .nscl import AdamNSCL
from .ogd import OGD
from .optimizers import OPTIMIZERS
from .owm import OWM
from .packnet import PackNet
from .pgn import PGN
from .rcl import RCL
from .recall import Recall
from .rogo import ROGO
from .sgp import SGP
from .si import SI
from .space import SPACE
from .trgp import TRGP
from .wsn import WSN

_FAMILIES = (
    (GradientProjection, SGP, TRGP, CUBER, FSDGPM, AdamNSCL, API, ROGO, CodeCL, OGD, OWM, Recall),  # project steps
    (DFGPM, DFSGP, DFTRGP, DFROGO),  # project steps towards flat minima
    (EWC, SI, MAS),  # tie important weights to old values
    (GEM, AGEM, MEGA1, MEGA2, MER, ER, ICaRL, DGR, DGDMN),  # replay old or generated examples
    (WSN, PackNet, HAT, SPACE),  # give each task a part of the network
    (APD, PGN, DEN, RCL),  # grow the network
    (Finetune, Multitask, SingleTask, Analytic),  # references
)
METHODS: Registry[type[Method]] = Registry("method", "remnant.methods")
METHODS.update({method.name: method for family in _FAMILIES for method in family})

__all__ = ["METHODS", "OPTIMIZERS", "Method"]
