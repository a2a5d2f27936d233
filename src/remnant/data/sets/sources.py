"""Where each dataset comes from and what it must contain; the table is in sources.toml."""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from remnant.errors import did_you_mean

from ..errors import DataError

Pixels = NDArray[np.uint8]
# train_images, train_labels, test_images, test_labels; cifar100 also has the superclasses, train_coarse and test_coarse
Arrays = dict[str, Pixels]


@dataclass(frozen=True)
class RemoteFile:
    """An original file, the addresses that serve it, and its SHA-256 or size where one is known."""

    name: str
    urls: Sequence[str]
    sha256: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """One dataset; sources.toml explains the fields."""

    name: str
    title: str
    image: Sequence[int]
    counts: Sequence[tuple[int, int]]
    classes: Sequence[int]
    wanted: str
    files: Sequence[RemoteFile]
    coarse: int = 0

    @property
    def limit(self) -> int:
        """The most bytes that a file of the dataset may hold, packed or unpacked: twice its pixels, and headers."""
        return 2 * max(map(sum, self.counts)) * math.prod(self.image) + 2**26


def _read_table() -> dict[str, Source]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    for entry in table.values():
        mirrors = entry.pop("mirrors")
        entry["files"] = [RemoteFile(urls=[url + file["name"] for url in mirrors], **file) for file in entry["files"]]
    return {name: Source(name, **entry) for name, entry in table.items()}


SOURCES = _read_table()


def source(name: str) -> Source:
    """The entry of a dataset; an unknown name is an error that suggests the nearest."""
    if name not in SOURCES:
        extra = " ('digits' comes with scikit-learn: nothing to fetch or add.)" if name == "digits" else ""
        raise DataError(f"No dataset called '{name}'. {did_you_mean(name, SOURCES)}{extra}")
    return SOURCES[name]
