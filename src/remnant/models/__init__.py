"""The paper's networks, by class and by name."""

from .activation import ReluDropout
from .alexnet import AlexNet
from .lenet import LeNet
from .mlp import MLP
from .network import Network
from .registry import MODELS, build
from .resnet import ResNet18
from .wiring import Maker, Units, chain

__all__ = [
    "MLP",
    "MODELS",
    "AlexNet",
    "LeNet",
    "Maker",
    "Network",
    "ReluDropout",
    "ResNet18",
    "Units",
    "build",
    "chain",
]
