"""The paper's networks, by class and by name."""

from .feedforward import MLP, AlexNet, LeNet
from .network import MODELS, Maker, Network, Units, build, linear_chain
from .parts import ReluDropout
from .resnet import ResNet18
from .vae import VAE

MODELS.update(mlp=MLP, alexnet=AlexNet, lenet=LeNet, resnet18=ResNet18)

__all__ = [
    "MLP",
    "MODELS",
    "VAE",
    "AlexNet",
    "LeNet",
    "Maker",
    "Network",
    "ReluDropout",
    "ResNet18",
    "Units",
    "build",
    "linear_chain",
]
