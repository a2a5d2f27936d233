"""Builds a stream from a folder of images: `taskNN/{train,test}/CLASS/…`."""

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .sets.image_formats import class_folders, decode
from .stream import Head, Split, Stream, Task
from .task_builder import hold_out, normalise

Size = tuple[int, int] | None  # height, width


def from_folder(path: str | PathLike[str], head: Head, size: Size, valid: float, name: str | None, seed: int) -> Stream:
    """See `Stream.from_folder`."""
    root = Path(path).expanduser()
    folders = sorted(p for p in root.glob("*") if p.is_dir() and p.name.lower().startswith("task"))
    if not folders:
        raise DataError(f"{root} has no folders task01, task02, … with train/CLASS/ and test/CLASS/ of images in each.")
    found = [_classes_by_part(folder) for folder in folders]
    file = next(iter(found[0]["train"].values()))[0]
    first = decode(file.read_bytes(), file, None, size)
    shape = (1 if first.ndim == 2 else 3, first.shape[0], first.shape[1])
    all_classes = sorted({each for parts in found for each in parts["train"]})
    tasks = []
    for number, (folder, parts) in enumerate(zip(folders, found, strict=True)):
        own = sorted(parts["train"])
        outputs = {each: i for i, each in enumerate(all_classes if head == "single" else own)}
        images = {part: [(f, outputs[c]) for c, files in parts[part].items() for f in files] for part in parts}
        if not images["valid"]:
            train, held = hold_out(np.arange(len(images["train"])), valid, seed, number)
            images["valid"] = [images["train"][i] for i in held]
            images["train"] = [images["train"][i] for i in train]
        splits = {part: _split(each, shape, size) for part, each in images.items()}
        tasks.append(Task(folder.name, len(own), **splits, labels=tuple(outputs[each] for each in own)))
    sizes = (len(all_classes),) if head == "single" else tuple(task.classes for task in tasks)
    return Stream(name or root.name, tuple(tasks), head, shape, sizes, seed)


def _classes_by_part(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Part → class → its images, for the train, valid and test folders of a task."""
    parts = {}
    for part in ("train", "valid", "test"):
        under = folder / part
        names = sorted(p.relative_to(under).as_posix() for p in under.rglob("*") if p.is_file())
        parts[part] = {name: [under / file for file in files] for name, files in class_folders(names).items()}
        if not parts[part] and part != "valid":
            raise DataError(f"{under} has no folders of images, one per class.")
        if unknown := sorted(parts[part].keys() - parts["train"].keys()):
            raise DataError(f"{under} has the class '{unknown[0]}', which {folder / 'train'} does not have.")
    return parts


def _split(images: list[tuple[Path, int]], shape: tuple[int, int, int], size: Size) -> Split:
    """A split of image files with their labels."""
    channels, height, width = shape

    def x(device: torch.device) -> Tensor:
        pixels = torch.empty((len(images), *shape), dtype=torch.uint8)
        for i, (file, _) in enumerate(images):
            image = decode(file.read_bytes(), file, channels, size)
            if image.shape[:2] != (height, width):
                raise DataError(
                    f"{file} is {image.shape[0]} × {image.shape[1]}, the first image {height} × {width}. "
                    f"Pass size=({height}, {width}) to resize all images."
                )
            pixels[i] = torch.from_numpy(image.copy()).view(height, width, channels).permute(2, 0, 1)
        return normalise(pixels.to(device))

    return Split(len(images), x, lambda: torch.tensor([label for _, label in images], dtype=torch.int64))
