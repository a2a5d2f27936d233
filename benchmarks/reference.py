"""Gradient Projection Memory the plain way, as the paper's scripts work: what ours is timed against, and tested against.

An eager step; a dense projector M·Mᵀ on every layer's `.grad`; an evaluation that fetches a number for every batch; patches
cut out one position at a time, and the SVD of all of them in numpy. It runs on our networks, so whatever those do quickly the
reference does too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.models import Network


class Reference:
    """`threshold`: (layer, task) → ε. `layer_samples`: pattern of layer names → how many of the samples are read there."""

    def __init__(self, network: Network, *, lr: float, threshold: Any, samples: int, layer_samples: Any = None) -> None:
        self.network, self.threshold, self.samples = network, threshold, samples
        self.layer_samples: Mapping[str, int] = layer_samples or {}
        self.optimizer = torch.optim.SGD(network.parameters(), lr=lr)
        self.layers = {
            name: module
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear | nn.Conv2d) and not name.startswith("heads.")
        }
        self.norms = [p for m in network.modules() if "Norm" in type(m).__name__ for p in m.parameters(recurse=False)]
        self.bases: dict[str, np.ndarray[Any, Any]] = {}
        self.projectors: dict[str, Tensor] = {}
        self.task = 0

    # --- while a task is learnt ---------------------------------------------------------------------------------------

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(x, self.task), y)
        loss.backward()
        if self.task:
            for name, projector in self.projectors.items():
                weight = self.layers[name].weight
                flat = weight.grad.view(len(weight), -1)
                weight.grad.copy_((flat - torch.mm(flat, projector)).view(weight.shape))
            for parameter in self.norms:
                parameter.grad.fill_(0)
        self.optimizer.step()

    def epoch(self, x: Tensor, y: Tensor, batch: int) -> Iterator[None]:
        """One pass in random order; yields after every step."""
        self.network.train()
        x = x.contiguous()  # channels first, as the scripts have it
        order = torch.randperm(len(y), device=x.device)
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            self.step(x[part], y[part])
            yield

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor, task: int, batch: int) -> tuple[float, float]:
        """Loss and accuracy, brought to the host batch by batch."""
        self.network.eval()
        loss, right = 0.0, 0
        x = x.contiguous()
        for start in range(0, len(y), batch):
            scores = self.network(x[start : start + batch], task)
            labels = y[start : start + batch]
            loss += F.cross_entropy(scores, labels).item() * len(labels)
            right += (scores.argmax(1) == labels).sum().item()
        return loss / len(y), right / len(y)

    # --- after a task -------------------------------------------------------------------------------------------------

    def finish(self, x: Tensor) -> None:
        """Remembers a task by its training inputs, and goes on to the next."""
        chosen = torch.randperm(len(x), device=x.device)[: self.samples]
        for name, columns in self._representations(x[chosen].contiguous()).items():
            self._grow(name, columns, self.threshold(name, self.task))
        device, dtype = x.device, next(self.network.parameters()).dtype
        self.projectors = {
            name: torch.from_numpy(basis @ basis.T).to(device, dtype) for name, basis in self.bases.items()
        }
        self.task += 1

    @torch.no_grad()
    def _representations(self, x: Tensor) -> dict[str, np.ndarray[Any, Any]]:
        """Layer → its inputs, one column a sample or a patch."""
        seen: dict[str, Tensor] = {}
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0]}))
            for name, layer in self.layers.items()
        ]
        self.network.eval()
        self.network(x, self.task)
        for hook in hooks:
            hook.remove()
        columns = {}
        for name, layer in self.layers.items():
            count = next((n for pattern, n in self.layer_samples.items() if fnmatch(name, pattern)), len(x))
            inputs = seen[name][:count]
            if isinstance(layer, nn.Conv2d):
                inputs = F.pad(inputs, [layer.padding[1]] * 2 + [layer.padding[0]] * 2)
                columns[name] = _patches(inputs.cpu().numpy().astype(np.float64), layer)
            else:
                columns[name] = inputs.cpu().numpy().astype(np.float64).T
        return columns

    def _grow(self, name: str, columns: np.ndarray[Any, Any], threshold: float) -> None:
        """Eq. 5 in the first task (counted as the scripts do), Eq. 8 and 9 after."""
        if name not in self.bases:
            u, s, _ = np.linalg.svd(columns, full_matrices=False)
            share = s**2 / np.sum(s**2)
            self.bases[name] = u[:, : int(np.sum(np.cumsum(share) < threshold))]
            return
        basis = self.bases[name]
        total = np.sum(np.linalg.svd(columns, compute_uv=False) ** 2)
        rest = columns - basis @ (basis.T @ columns)
        u, s, _ = np.linalg.svd(rest, full_matrices=False)
        held = (total - np.sum(s**2)) / total
        count = 0
        for share in s**2 / total:
            if held >= threshold:
                break
            held += share
            count += 1
        self.bases[name] = np.hstack((basis, u[:, :count]))[:, : len(basis)]


def _patches(inputs: np.ndarray[Any, Any], layer: nn.Conv2d) -> np.ndarray[Any, Any]:
    (kh, kw), (sh, sw) = layer.kernel_size, layer.stride
    images, _, height, width = inputs.shape
    rows, across = (height - kh) // sh + 1, (width - kw) // sw + 1
    columns = np.zeros((inputs.shape[1] * kh * kw, images * rows * across))
    k = 0
    for image in range(images):
        for i in range(rows):
            for j in range(across):
                columns[:, k] = inputs[image, :, i * sh : i * sh + kh, j * sw : j * sw + kw].reshape(-1)
                k += 1
    return columns
