"""Builds a stream from a folder of images: `taskNN/{train,test}/CLASS/…`."""

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .own import Examples, Parts, assemble
from .sets.readers.images import class_folders, decode, is_image
from .stream import Head, Stream
from .task import CPU
from .task_builder import Rows, channels_first

Size = tuple[int, int] | None  # height, width
Classes = dict[str, list[Path]]  # class → its images


def from_folder(path: str | PathLike[str], head: Head, size: Size, valid: float, name: str | None, seed: int) -> Stream:
    """See `Stream.from_folder`."""
    root = Path(path).expanduser()
    folders = sorted(p for p in root.glob("*") if p.is_dir() and p.name.lower().startswith("task"))
    if not folders:
        raise DataError(f"{root} has no folders task01, task02, … with train/CLASS/ and test/CLASS/ of images in each.")
    tasks = [_classes_of_parts(folder) for folder in folders]
    file = next(iter(tasks[0]["train"].values()))[0]
    first = decode(file.read_bytes(), file, None, size)
    shape = (1 if first.ndim == 2 else 3, first.shape[0], first.shape[1])
    everything = sorted({each for task in tasks for each in task["train"]})
    parts: Parts = {"train": [], "valid": [], "test": []}
    for folder, task in zip(folders, tasks, strict=True):
        own = sorted(task["train"])
        outputs = {each: i for i, each in enumerate(everything if head == "single" else own)}
        for part, examples in parts.items():
            made = _examples(task[part], outputs, shape, size, str(folder / part))
            made.original = tuple(outputs[each] for each in own)
            examples.append(made)
    names = [folder.name for folder in folders]
    shares, name = {"valid": valid}, name or root.name
    return assemble(parts, shares, head=head, classes=None, names=names, name=name, seed=seed, purpose="validation")


def _classes_of_parts(folder: Path) -> dict[str, Classes]:
    """The classes in the train, valid and test folders of a task, checked."""
    parts = {part: _classes(folder / part) for part in ("train", "valid", "test")}
    for part in ("train", "test"):
        if not parts[part]:
            raise DataError(f"{folder / part} has no folders of images, one per class.")
    for part in ("valid", "test"):
        if unknown := sorted(parts[part].keys() - parts["train"].keys()):
            raise DataError(f"{folder / part} has the class '{unknown[0]}', which {folder / 'train'} does not have.")
    return parts


def _classes(folder: Path) -> Classes:
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and is_image(p.name))
    return {name: [folder / file for file in files] for name, files in class_folders(names).items()}


def _examples(
    classes: Classes, outputs: dict[str, int], shape: tuple[int, int, int], size: Size, where: str
) -> Examples:
    files = [file for each in classes.values() for file in each]
    labels = torch.tensor([outputs[name] for name, each in classes.items() for _ in each], dtype=torch.int64)

    def x(rows: Rows) -> Tensor:
        channels, height, width = shape
        pixels = np.empty((len(rows), height, width, *((3,) if channels == 3 else ())), np.uint8)
        for i, row in enumerate(rows):
            image = decode(files[row].read_bytes(), files[row], channels, size)
            if image.shape[:2] != (height, width):
                raise DataError(
                    f"{files[row]} is {image.shape[0]} × {image.shape[1]}, the first image {height} × {width}. "
                    f"Pass size=({height}, {width}) to resize all images."
                )
            pixels[i] = image
        return channels_first(pixels, CPU)

    return Examples(where, len(files), shape, x, lambda: labels)
