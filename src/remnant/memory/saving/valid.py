"""Checks of the values in a saved state. Each returns the value, or raises a ValueError that names it."""

from typing import Any

import torch
from torch import Tensor

ORTHONORMAL = 16  # units of eps·√n by which MᵀM may differ from I; rounding alone leaves less than one


def whole(name: str, value: Any, most: float = float("inf")) -> int:
    """A count: a whole number from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is {value!r}")
    return value


def number(name: str, value: Any) -> float:
    """A float. A loss may be NaN or infinite."""
    if type(value) is not float:
        raise ValueError(f"{name} is {value!r}")
    return value


def tensor(name: str, value: Any, like: Tensor, *, infinite: bool = False) -> Tensor:
    """A tensor of the shape and kind of `like`: one float type may stand for another, but not an integer for a float."""
    if not isinstance(value, Tensor) or value.shape != like.shape:
        raise ValueError(f"{name} is not a tensor of shape {tuple(like.shape)}")
    if not (torch.can_cast(value.dtype, like.dtype) and torch.can_cast(like.dtype, value.dtype)):
        raise ValueError(f"{name} is {value.dtype} and not {like.dtype}")
    if bool(value.isnan().any()) or not (infinite or bool(value.isfinite().all())):
        raise ValueError(f"{name} has values that are not finite")
    return value


def checksums(value: Any) -> dict[str, tuple[str, int]]:
    """Name → the kind of a tensor and its checksum."""
    found = {str(name): (kind, number) for name, (kind, number) in value.items()}
    if any(type(kind) is not str or type(number) is not int for kind, number in found.values()):
        raise ValueError("a checksum is not a kind and a whole number")
    return found


def directions(name: str, value: Any, capacity: int) -> Tensor:
    """At most `capacity` orthonormal columns, up to the rounding of their number type."""
    if not isinstance(value, Tensor) or value.ndim != 2 or value.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} is not a matrix of float32 or float64")
    if value.shape[0] != capacity or value.shape[1] > capacity:
        raise ValueError(f"{name} has the shape {tuple(value.shape)} for {capacity} inputs")
    exact = value.double()  # neither autocast nor TF32 rounds these products
    error = (exact.mT @ exact - torch.eye(exact.shape[1], dtype=exact.dtype, device=exact.device)).abs()
    if not bool((error <= ORTHONORMAL * capacity**0.5 * torch.finfo(value.dtype).eps).all()):  # NaN fails, too
        raise ValueError(f"{name} has columns that are not orthonormal")
    return value
