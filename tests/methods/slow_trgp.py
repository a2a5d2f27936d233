"""TRGP written out, for the tests of TRGP and of what extends it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split


class SlowTRGP:
    """Written out for an MLP with heads: W_eff as a matrix, autograd through all of it, numpy's SVDs."""

    def __init__(self, net: Any, lr: float, threshold: float, trust: float) -> None:
        self.net, self.lr, self.threshold, self.trust = net, lr, threshold, trust
        self.M = [np.zeros((layer.in_features, 0)) for layer in net.hidden]
        self.B: list[list[Any]] = []  # task → layer
        self.Q: list[list[list[tuple[Tensor, Tensor]]]] = []  # task → layer → (B, Q)
        self.trusted: list[list[int]] = []  # layer → old tasks, of the task at hand

    def weights(self, task: int) -> list[Tensor]:
        found = []
        for layer, pairs in zip(self.net.hidden, self.Q[task], strict=True):
            W = layer.weight
            found.append(W + sum(W @ B @ (Q - torch.eye(len(Q))) @ B.T for B, Q in pairs))
        return found

    def logits(self, x: Tensor, task: int) -> Tensor:
        for W in self.weights(task):
            x = F.relu(x @ W.T)
        out: Tensor = self.net.heads[task](x)
        return out

    def start(self, task: int, split: Split) -> None:
        own = [layer.weight for layer in self.net.hidden]
        gradients = torch.autograd.grad(F.cross_entropy(self.net(split.x, task), split.y), own)
        self.Q.append([])
        self.trusted = []
        for n, g in enumerate(gradients):
            parts = {j: float((g @ B[n] @ B[n].T).norm()) for j, B in enumerate(self.B)}
            best = sorted(parts, key=lambda j: -parts[j])[:2]
            trusted = [j for j in best if parts[j] > self.trust * float(g.norm())]
            self.trusted.append(trusted)
            Bs = [self.B[j][n] for j in trusted]
            self.Q[-1].append([(B, torch.eye(B.shape[1], dtype=torch.float64, requires_grad=True)) for B in Bs])

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        own = [layer.weight for layer in self.net.hidden]
        free = [self.net.heads[task].weight, *(Q for pairs in self.Q[task] for _, Q in pairs)]
        gradients = torch.autograd.grad(F.cross_entropy(self.logits(x, task), y), [*own, *free])
        with torch.no_grad():
            for n, (parameter, gradient) in enumerate(zip([*own, *free], gradients, strict=True)):
                parameter -= self.lr * (self.projected(gradient, n) if n < len(own) else gradient)

    def projected(self, gradient: Tensor, n: int) -> Tensor:
        M = torch.from_numpy(self.M[n])
        return gradient - gradient @ M @ M.T

    @torch.no_grad()
    def finish(self, x: Tensor, task: int) -> None:
        bases = []
        for n, W in enumerate(self.weights(task)):
            R, M = x.T.numpy(), self.M[n]
            U, sigma, _ = np.linalg.svd(R - M @ M.T @ R, full_matrices=False)
            energies = np.concatenate([((R.T @ M) ** 2).sum(axis=0), sigma**2])
            order = np.argsort(-energies, kind="stable")
            count = int((np.cumsum(energies[order]) < self.threshold * (R**2).sum()).sum()) + 1
            all_directions = np.hstack([M, U])
            bases.append(torch.from_numpy(all_directions[:, sorted(order[:count])].copy()))
            self.M[n] = np.hstack([M, U[:, [i - M.shape[1] for i in sorted(order[:count]) if i >= M.shape[1]]]])
            x = F.relu(x @ W.T)
        self.B.append(bases)
