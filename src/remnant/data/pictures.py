"""Reads image files: a folder of them, sorted by part, task and class."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .sets.image_formats import decode, image_files
from .table import PARTS, Table
from .task_builder import Rows

Size = tuple[int, int]  # height, width
LAYOUTS = "CLASS/, TASK/CLASS/, {train,test}/CLASS/ or TASK/{train,test}/CLASS/"


def picture_reader(
    load: Callable[[int], tuple[bytes, object]], size: Size | None, channels: int | None = None
) -> Callable[[Rows], Tensor]:
    """Reads images as bytes N×C×H×W. `load` gives the content of a file and its name.

    The first image decides the number of channels, unless it is given, and the size of all.
    """
    first = decode(*load(0), channels, size)
    height, width = first.shape[:2]
    colours = first.size // (height * width)

    def read(rows: Rows) -> Tensor:
        pixels = torch.empty((len(rows), colours, height, width), dtype=torch.uint8)
        for i, row in enumerate(rows.tolist()):
            content, where = load(row)
            image = decode(content, where, colours, size)
            if image.shape[:2] != (height, width):
                raise DataError(
                    f"{where} is {image.shape[0]} × {image.shape[1]}, the first image {height} × {width}. Pass "
                    f"size=({height}, {width}) to resize all images, or --set stream.size=[{height},{width}]."
                )
            pixels[i] = torch.from_numpy(image.copy()).view(height, width, colours).permute(2, 0, 1)
        return pixels

    return read


def picture_tables(root: Path, size: Size | None) -> dict[str, Table]:
    """The parts of a folder of pictures. The folder of a picture is its class, and the one above may be its task."""
    found: dict[str, list[tuple[Path, list[str]]]] = {}
    paths = (path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file())
    for path, above in image_files(paths):
        *above, name = above or [""]
        part = next((PARTS[folder.lower()] for folder in above if folder.lower() in PARTS), "")
        found.setdefault(part, []).append((root / path, [f for f in above if f.lower() not in PARTS] + [name]))
    if not found:
        raise DataError(f"{root} has no pictures in {LAYOUTS}, and is not a dataset saved by HuggingFace datasets.")
    depth = len(next(iter(found.values()))[0][1])
    for part, pictures in found.items():
        for file, folders in pictures:
            if len(folders) != depth or depth > 2 or not folders[-1] or bool(part) == ("" in found):
                raise DataError(f"{file}: a picture lies in {LAYOUTS}, and all pictures of a stream in the same one.")
    train = found.get("train") or found.get("") or []
    channels = None if not train else 1 if decode(train[0][0].read_bytes(), train[0][0], None).ndim == 2 else 3
    return {part or "train": _table(root / part, pictures, size, channels) for part, pictures in found.items()}


def _table(where: Path, pictures: Sequence[tuple[Path, list[str]]], size: Size | None, channels: int | None) -> Table:
    files = [file for file, _ in pictures]
    folders = np.array([names for _, names in pictures])
    read = picture_reader(lambda row: (files[row].read_bytes(), files[row]), size, channels)
    return Table(str(where), folders[:, -1], folders[:, 0] if folders.shape[1] == 2 else None, read)
