"""Recognises the task of an example: the one whose own directions B_t leave the least of its inputs, ‖x − B_t·B_tᵀ·x‖²."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..subspaces.subspace import Subspace

CLOSE = 1e-6  # of ‖x‖²: nearer residuals are computed again. The difference ‖x‖² − ‖B_tᵀ·x‖² rounds by about 1e-15


class Recognition(NamedTuple):
    """The task that each example most likely belongs to, and a confidence from 0 (two tasks fit equally well) to 1."""

    task: Tensor
    confidence: Tensor


def recognised(rows: Tensor, tasks: list[list[Subspace]], examples: int) -> Recognition:
    """Names the task of each example, given its rows (groups, N, n) or indices (1, N) and each task's directions by group."""
    if not rows.is_floating_point():
        residuals = torch.stack([_residuals_of_indices(rows[0], subspaces[0]) for subspaces in tasks])
        energies = torch.ones(rows.shape[1], dtype=torch.float64, device=rows.device)
        return _nearest(residuals.reshape(len(tasks), examples, -1).sum(2), energies.reshape(examples, -1).sum(1))[0]
    by_example = rows.double().reshape(len(rows), examples, -1, rows.shape[-1])
    sizes = by_example.square().sum(dim=(2, 3))
    energies = sizes.sum(0)
    residuals = torch.stack([_quick_residuals(by_example, sizes, subspaces) for subspaces in tasks])
    found, margin = _nearest(residuals, energies)
    close = margin <= CLOSE * energies
    if bool(close.any()):
        residuals[:, close] = torch.stack([_residuals(by_example[:, close], subspaces) for subspaces in tasks])
        found, _ = _nearest(residuals, energies)
    return found


def _nearest(residuals: Tensor, energies: Tensor) -> tuple[Recognition, Tensor]:
    """The task with the smallest residual, and how far the second is. "No task" competes: it leaves everything."""
    best, task = residuals.min(dim=0)
    second = torch.cat([residuals, energies[None]]).scatter(0, task[None], torch.inf).amin(dim=0)
    return Recognition(task, torch.where(second > 0, 1 - best / second, 0)), second - best


def _quick_residuals(rows: Tensor, sizes: Tensor, subspaces: list[Subspace]) -> Tensor:
    """‖x‖² − ‖Bᵀ·x‖², or ‖Nᵀ·x‖² if the complement N of B is stored: one product instead of two. `sizes` are ‖x‖²."""
    residuals = torch.zeros_like(sizes[0])
    for x, size, subspace in zip(rows, sizes, subspaces, strict=True):
        ((form, columns),) = subspace.state().items()
        energy = (x @ columns.to(x)).square().sum(dim=(1, 2))
        residuals += energy if form == "complement" else (size - energy).clamp(min=0)
    return residuals


def _residuals(rows: Tensor, subspaces: list[Subspace]) -> Tensor:
    """‖x − B·Bᵀ·x‖² of every example, summed over the groups."""
    return sum(subspace.remove(x).square().sum(dim=(1, 2)) for x, subspace in zip(rows, subspaces, strict=True))  # type: ignore[return-value]


def _residuals_of_indices(indices: Tensor, subspace: Subspace) -> Tensor:
    unused = subspace.remove(torch.ones(subspace.capacity, dtype=torch.float64, device=indices.device))
    return unused[indices]
