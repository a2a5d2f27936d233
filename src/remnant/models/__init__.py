"""The paper's networks: each takes what it needs, and none knows what trains it."""

from remnant.models.alexnet import AlexNet
from remnant.models.lenet import LeNet
from remnant.models.mlp import MLP
from remnant.models.network import Network
from remnant.models.readiness import make_ready
from remnant.models.registry import MODELS, build
from remnant.models.resnet import ResNet18

__all__ = ["MLP", "MODELS", "AlexNet", "LeNet", "Network", "ResNet18", "build", "make_ready"]
