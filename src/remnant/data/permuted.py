"""Streams that show one set of images again and again, its pixels moved: permuted or rotated."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from .checks import number, one_of, share, whole
from .pixels import normalise, split_of
from .registry import benchmark
from .seeding import first_out, generator
from .sets.store import load_dataset
from .stream import Stream, Task

Move = Callable[[Tensor], Tensor]  # bytes N×1×H×W → float or bytes N×1×H×W
Pixels = Literal["normalised", "unit"]
MNIST_STATS = (0.1307,), (0.3081,)


@benchmark("pmnist", "mnist")
def pmnist(seed: int, *, tasks: int = 10, valid: float = 0.1, pixels: Pixels = "normalised") -> Stream:
    """Permuted MNIST: every task is MNIST under its own random permutation of the pixels (the first task too).

    Pixels are normalised to mean 0 and deviation 1 as a rule; `unit` ones lie between 0 and 1.
    """
    unit = one_of("pixels", pixels, get_args(Pixels)) == "unit"
    return _permuted("mnist", seed, tasks, valid, *(((0.0,), (1.0,)) if unit else MNIST_STATS))


@benchmark("permuted-fashion", "fashion_mnist")
def permuted_fashion(seed: int, *, tasks: int = 10, valid: float = 0.1) -> Stream:
    """Fashion-MNIST under one random permutation of the pixels per task."""
    return _permuted("fashion_mnist", seed, tasks, valid, (0.2860,), (0.3530,))


@benchmark("permuted-digits", "digits")
def permuted_digits(seed: int, *, tasks: int = 10, valid: float = 0.1) -> Stream:
    """scikit-learn's 8×8 digits under one random permutation of the pixels per task: seconds on any machine."""
    return _permuted("digits", seed, tasks, valid, (0.3053,), (0.3761,), full=16.0)


@benchmark("rotated-mnist", "mnist")
def rotated_mnist(seed: int, *, tasks: int = 10, degrees: float = 180.0, valid: float = 0.1) -> Stream:
    """MNIST turned further with every task: task t of T by a random angle in [t−1, t) · degrees / T."""
    tasks = whole("tasks", tasks, 1, 1000)
    degrees = number("degrees", degrees, 0, 360)
    angles = [(t + float(generator(seed, "angle", t).random())) * degrees / tasks for t in range(tasks)]
    moves = [(f"rotated {angle:.1f}°", rotation(28, angle)) for angle in angles]
    return _moved("mnist", moves, valid, *MNIST_STATS)


def _permuted(
    name: str, seed: int, tasks: int, valid: float, mean: tuple[float], std: tuple[float], full: float = 255.0
) -> Stream:
    pixels = math.prod(load_dataset(name).input_shape)
    moves = []
    for t in range(whole("tasks", tasks, 1, 1000)):
        order = generator(seed, "permutation", t).permutation(pixels)
        moves.append((f"permutation {t + 1}", permutation(torch.from_numpy(order))))
    return _moved(name, moves, valid, mean, std, full)


def _moved(
    name: str,
    moves: list[tuple[str, Move]],
    valid: float,
    mean: tuple[float],
    std: tuple[float],
    full: float = 255.0,
) -> Stream:
    """One single-head task per move over the same rows: only the stored bytes are held, never a copy per task."""
    dataset = load_dataset(name)
    train, held = first_out(np.arange(len(dataset.labels("train"))), share("valid", valid))
    test = np.arange(len(dataset.labels("test")))

    def task(label: str, move: Move) -> Task:
        def transform(x: Tensor) -> Tensor:
            return normalise(move(x), mean, std, full)

        return Task(
            label,
            10,
            split_of(dataset, "train", train, transform),
            split_of(dataset, "train", held, transform),
            split_of(dataset, "test", test, transform),
            tuple(range(10)),
        )

    return Stream(name, tuple(task(*move) for move in moves), "single", dataset.input_shape, (10,))


def permutation(order: Tensor) -> Move:
    """Pixel i of the moved image is pixel order[i] of the stored one."""

    def move(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if x.device.type == "cpu":  # for bytes numpy's gather is three times as fast
            return torch.from_numpy(flat.numpy().take(order.numpy(), axis=1)).view_as(x)
        return flat.index_select(1, order.to(x.device)).view_as(x)

    return move


def rotation(side: int, degrees: float) -> Move:
    """Counter-clockwise about the centre, between pixels bilinear, black from outside.

    Written as four gathers with weights: the same products and sums on every device.
    """
    centre = (side - 1) / 2
    row, column = np.mgrid[:side, :side] - centre
    turn = math.radians(degrees)
    # Where each pixel of the turned image comes from.
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
