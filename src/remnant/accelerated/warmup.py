"""What a first step would come to one after the other, made ready side by side: kernels compiled, libraries loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.models import ReluDropout

from .norm_pool import FEATURES, LEAST_ROWS, Normalised, NormalisedPool

# What is normalised by the batch: how, whether before pooling, and the smallest input that takes the kernels of most others.
KERNELS: dict[type[nn.Module], tuple[Any, bool, tuple[int, ...]]] = {
    nn.BatchNorm1d: (Normalised, False, (LEAST_ROWS, FEATURES)),
    nn.BatchNorm2d: (NormalisedPool, True, (1, FEATURES, 2, 2)),
}
ROWS, ACROSS = 64, 12  # images, and their pixels, like most that convolutions see

_ready: set[type[nn.Module]] = set()
_one_at_a_time = threading.Lock()


def warm_up(network: nn.Module) -> None:
    """Has ready what a step of such a network on a GPU needs; whoever asks meanwhile waits. It draws no random numbers.

    Nothing is said of what fails here: it is left to the step, where it fails again.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    with _one_at_a_time:
        if device.type == "cuda" and type(network) not in _ready:
            _ready.add(type(network))
            with ThreadPoolExecutor() as pool:
                for job in _jobs(network):
                    pool.submit(_on, device, job)


def _on(device: torch.device, job: Callable[[torch.device], None]) -> None:
    with torch.cuda.device(device), torch.no_grad():
        job(device)


def _jobs(network: nn.Module) -> Iterator[Callable[[torch.device], None]]:
    yield partial(_convolve, network)
    pools = {module.pool for module in network.modules() if isinstance(module, ReluDropout)}
    norms = {type(module) for module in network.modules() if not getattr(module, "track_running_stats", True)}
    for norm, (way, pooled, shape) in KERNELS.items():
        if norm in norms and pooled in pools:
            yield partial(_normalise, way, shape)


def _normalise(way: Any, shape: tuple[int, ...], device: torch.device) -> None:
    """Both ways, but not through autograd, whose one thread would compile all that goes back after one another."""
    x, weight = torch.zeros(shape, device=device), torch.ones(shape[1], device=device)
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    context = _Context()
    way.backward(context, way.forward(context, x, weight, weight, seed, 1e-5, 0.5))


def _convolve(network: nn.Module, device: torch.device) -> None:
    """And normalise, as at test. The library has hundreds of megabytes, a kernel of which is read when first asked for."""
    for conv in (module for module in network.modules() if isinstance(module, nn.Conv2d)):
        x = torch.zeros(ROWS, conv.in_channels, ACROSS, ACROSS, dtype=conv.weight.dtype, device=device)
        x = x.to(memory_format=torch.channels_last)
        y = F.batch_norm(conv._conv_forward(x, conv.weight, None), None, None, training=True)  # past any hooks
        slide = conv.stride, conv.padding, conv.dilation, False, (0, 0), conv.groups
        torch.ops.aten.convolution_backward(y, x, conv.weight, None, *slide, (True, True, False))


class _Context:
    """What autograd gives a function to remember things by."""

    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors
