"""Where each dataset comes from and what it must contain; the table is in sources.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remnant.suggest import did_you_mean

from ..errors import DataError


@dataclass(frozen=True)
class RemoteFile:
    """An original file, the addresses that serve it, and its checksum or size where one is known."""

    name: str
    urls: tuple[str, ...]
    md5: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """One dataset; sources.toml explains the fields."""

    name: str
    title: str
    image: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]
    classes: tuple[int, ...]
    wanted: str
    files: tuple[RemoteFile, ...]
    coarse: bool = False


def _source(name: str, entry: dict[str, Any]) -> Source:
    mirrors, files = entry.pop("mirrors"), entry.pop("files")
    remote = tuple(RemoteFile(urls=tuple(mirror + file["name"] for mirror in mirrors), **file) for file in files)
    return Source(name, files=remote, **{key: _frozen(value) for key, value in entry.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


SOURCES = {
    name: _source(name, entry)
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}


def source(name: str) -> Source:
    """The entry of a dataset; an unknown name is an error that suggests the nearest."""
    if name not in SOURCES:
        extra = " ('digits' comes with scikit-learn: nothing to fetch or add.)" if name == "digits" else ""
        raise DataError(f"No dataset called '{name}'. {did_you_mean(name, SOURCES)}{extra}")
    return SOURCES[name]
