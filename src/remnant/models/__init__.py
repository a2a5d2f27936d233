"""The paper's networks, by class and by name."""

from .convolutional import AlexNet, LeNet, ReluDropout, ResponseNorm
from .network import MLP, MODELS, Maker, Network, Units, build, linear_chain
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
    "ResponseNorm",
    "Units",
    "build",
    "linear_chain",
]
