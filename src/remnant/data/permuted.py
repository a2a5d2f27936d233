"""Streams that show the same images in every task with their pixels moved: permuted or rotated."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remnant.options import Share, number

from .sets.store import Dataset, load_dataset
from .stream import Stream
from .task_builder import STANDARDISE, Tasks, Transform, generator, held_out_count, make_task, normalise


def pmnist(
    seed: int, *, tasks: Tasks = 10, valid: Share = 0.1, pixels: Literal["normalised", "unit"] = "normalised"
) -> Stream:
    """Permuted MNIST: every task is MNIST under its own random permutation of the pixels (the first task too)."""
    return _permuted("mnist", seed, tasks, valid, normalise if pixels == "unit" else STANDARDISE["mnist"])


def permuted_fashion(seed: int, *, tasks: Tasks = 10, valid: Share = 0.1) -> Stream:
    """Fashion-MNIST under one random permutation of the pixels per task."""
    return _permuted("fashion_mnist", seed, tasks, valid, STANDARDISE["fashion_mnist"])


def permuted_digits(seed: int, *, tasks: Tasks = 10, valid: Share = 0.1) -> Stream:
    """scikit-learn's 8×8 digits under one random permutation of the pixels per task: seconds on any machine."""
    return _permuted("digits", seed, tasks, valid, STANDARDISE["digits"])


def rotated_mnist(
    seed: int, *, tasks: Tasks = 10, degrees: Annotated[float, number(0, 360)] = 180.0, valid: Share = 0.1
) -> Stream:
    """MNIST turned further with every task: task t of T by a random angle in [t−1, t) · degrees / T."""
    angles = [(t + float(generator(seed, "angle", t).random())) * degrees / tasks for t in range(tasks)]
    moves = [(f"rotated {angle:.1f}°", rotation(28, angle)) for angle in angles]
    return _moved(load_dataset("mnist"), moves, valid, STANDARDISE["mnist"])


def _permuted(name: str, seed: int, tasks: int, valid: float, transform: Transform) -> Stream:
    dataset = load_dataset(name)
    pixels = math.prod(dataset.input_shape)
    orders = [generator(seed, "permutation", t).permutation(pixels) for t in range(tasks)]
    moves = [(f"permutation {t}", partial(permuted, order=order)) for t, order in enumerate(orders, 1)]
    return _moved(dataset, moves, valid, transform)


def _moved(dataset: Dataset, moves: Sequence[tuple[str, Transform]], valid: float, transform: Transform) -> Stream:
    """One single-head task per move. All share the same rows of stored bytes; the first rows are the validation set."""
    count, tests = (len(dataset.arrays[f"{part}_labels"]) for part in ("train", "test"))
    held = held_out_count(count, valid)
    rows = np.arange(held, count), np.arange(held), np.arange(tests)
    tasks = [make_task(title, dataset, rows, (move, transform), tuple(range(10)), "single") for title, move in moves]
    return Stream(dataset.name, tuple(tasks), "single", dataset.input_shape, (10,))


def permuted(x: Tensor, order: NDArray[np.int64]) -> Tensor:
    """Pixel i of the new image is pixel order[i] of the old one."""
    flat = x.flatten(1)
    if x.device.type == "cpu":  # numpy gathers bytes three times as fast
        return torch.from_numpy(flat.numpy().take(order, axis=1)).view_as(x)
    return flat.index_select(1, torch.from_numpy(order).to(x.device)).view_as(x)


def rotation(side: int, degrees: float) -> Transform:
    """Rotates counter-clockwise about the centre with bilinear interpolation, black outside."""
    # Four weighted gathers, because every device then computes the same products and sums.
    centre = (side - 1) / 2
    row, column = np.mgrid[:side, :side] - centre
    turn = math.radians(degrees)
    # Where each pixel of the rotated image comes from.
    source_row = centre + row * math.cos(turn) + column * math.sin(turn)
    source_column = centre - row * math.sin(turn) + column * math.cos(turn)
    top, left = np.floor(source_row).astype(int), np.floor(source_column).astype(int)
    corners = []
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        r, c = top + down, left + right
        weight = (1 - np.abs(source_row - r)) * (1 - np.abs(source_column - c))
        weight[(r < 0) | (r >= side) | (c < 0) | (c >= side)] = 0
        index = np.clip(r, 0, side - 1) * side + np.clip(c, 0, side - 1)
        corners.append((torch.from_numpy(index.reshape(-1)), torch.from_numpy(weight.reshape(-1)).float()))

    def move(x: Tensor) -> Tensor:
        flat = x.flatten(1).to(torch.float32)
        turned = torch.zeros_like(flat)
        for index, weight in corners:
            turned.add_(flat.index_select(1, index.to(x.device)).mul_(weight.to(x.device)))
        return turned.view_as(x)

    return move
