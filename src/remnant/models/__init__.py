"""The paper's networks: each takes what it needs, and none knows what trains it."""

from .activation import ReluDropout
from .alexnet import AlexNet
from .lenet import LeNet
from .mlp import MLP
from .network import Network
from .registry import MODELS, build
from .resnet import ResNet18

__all__ = ["MLP", "MODELS", "AlexNet", "LeNet", "Network", "ReluDropout", "ResNet18", "build"]
