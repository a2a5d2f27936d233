"""Compiles kernels and loads libraries in parallel before the first step, which would do it one after the other."""

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

# For each norm: the fused operation, whether it pools, and the smallest input that needs the same kernels as most others.
KERNELS: dict[type[nn.Module], tuple[Any, bool, tuple[int, ...]]] = {
    nn.BatchNorm1d: (Normalised, False, (LEAST_ROWS, FEATURES)),
    nn.BatchNorm2d: (NormalisedPool, True, (1, FEATURES, 2, 2)),
}
IMAGES, SIDE = 64, 12  # a typical input of a convolution

_warmed_up: set[type[nn.Module]] = set()
_one_warm_up = threading.Lock()


def warm_up(network: nn.Module) -> None:
    """Prepares the steps of networks of this class on a GPU. Draws no random numbers.

    Other callers wait until it is done. Errors are ignored here, because the step will raise them again.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    with _one_warm_up:
        if device.type == "cuda" and type(network) not in _warmed_up:
            _warmed_up.add(type(network))
            with ThreadPoolExecutor() as pool:
                for job in _jobs(network):
                    pool.submit(_run, job, device)


def _jobs(network: nn.Module) -> Iterator[Callable[[torch.device], None]]:
    yield partial(_convolve, network)
    pools = {module.pool for module in network.modules() if isinstance(module, ReluDropout)}
    norms = {type(module) for module in network.modules() if not getattr(module, "track_running_stats", True)}
    for norm, (operation, pooled, shape) in KERNELS.items():
        if norm in norms and pooled in pools:
            yield partial(_normalise, operation, shape)


def _run(job: Callable[[torch.device], None], device: torch.device) -> None:
    with torch.cuda.device(device), torch.no_grad():
        job(device)


def _normalise(operation: Any, shape: tuple[int, ...], device: torch.device) -> None:
    """Runs forward and backward without autograd, whose single thread would compile all backward kernels in sequence."""
    x, weight = torch.zeros(shape, device=device), torch.ones(shape[1], device=device)
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    context = _Context()
    operation.backward(context, operation.forward(context, x, weight, weight, seed, 1e-5, 0.5))


def _convolve(network: nn.Module, device: torch.device) -> None:
    """Runs each convolution and a norm, as at test time. cuDNN reads its large library in parts, on first use."""
    for conv in (module for module in network.modules() if isinstance(module, nn.Conv2d)):
        x = torch.zeros(IMAGES, conv.in_channels, SIDE, SIDE, dtype=conv.weight.dtype, device=device)
        x = x.to(memory_format=torch.channels_last)
        y = F.batch_norm(conv._conv_forward(x, conv.weight, None), None, None, training=True)  # bypasses hooks
        slide = conv.stride, conv.padding, conv.dilation, False, (0, 0), conv.groups
        torch.ops.aten.convolution_backward(y, x, conv.weight, None, *slide, (True, True, False))


class _Context:
    """Replaces the context that autograd gives to a function."""

    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors
