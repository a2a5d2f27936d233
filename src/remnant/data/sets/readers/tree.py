"""A folder, tar or zip as names and bytes. Nothing is unpacked, so no archive can write anywhere."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError

Pixels = NDArray[np.uint8]
Arrays = dict[str, Pixels]  # train_images, train_labels, test_images, test_labels


class Tree:
    """File names with forward slashes, in sorted order, and a way to read each."""

    def __init__(self, where: Path, names: list[str], read: Callable[[str], bytes]) -> None:
        self.where = where
        self.names = sorted(names)
        self._read = read

    def read(self, name: str) -> bytes:
        try:
            return self._read(name)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self.where}: '{name}' cannot be read ({error}).") from error

    def find(self, *file_names: str) -> str | None:
        """The shallowest file with one of these names, in any folder."""
        hits = [name for name in self.names if name.rsplit("/", 1)[-1] in file_names]
        return min(hits, key=lambda name: (name.count("/"), name), default=None)

    def need(self, wanted: str, *file_names: str) -> bytes:
        """The unzipped bytes of the file that `find` gives; an error says what to provide if there is none."""
        name = self.find(*file_names)
        if name is None:
            raise DataError(f"{self.where} has no file '{file_names[0]}'. Give {wanted}.")
        data = self.read(name)
        if data[:2] != b"\x1f\x8b":
            return data
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.where}: '{name}' is not a complete gzip file ({error}).") from error


@contextmanager
def open_tree(path: Path) -> Iterator[Tree]:
    """`path` as a tree: a folder, .tar, .tar.gz/.tgz or .zip."""
    path = Path(path).expanduser()
    if path.is_dir():
        names = [p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()]
        yield Tree(path, names, lambda name: (path / name).read_bytes())
    elif not path.exists():
        raise DataError(f"{path} does not exist.")
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            yield Tree(path, names, archive.read)
    else:
        # A gzipped tar can only be read forwards and readers have their own order, so all of it goes into memory.
        content = _tar(path)
        yield Tree(path, list(content), content.__getitem__)


def _tar(path: Path) -> dict[str, bytes]:
    content = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() else None
                if file is not None:
                    content[member.name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is neither a folder nor a complete .tar, .tar.gz or .zip archive ({error})."
        ) from error
    return content
