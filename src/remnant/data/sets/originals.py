"""The original files of a dataset, in a folder or an archive. Nothing is unpacked, so no archive can write anywhere."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from ..errors import DataError


class Originals:
    """The files in a folder, .tar, .tar.gz/.tgz or .zip; `wanted` says which ones the dataset needs."""

    def __init__(self, path: Path, wanted: str) -> None:
        self.path, self.wanted = path, wanted
        self._read: Callable[[str], bytes]
        if path.is_dir():
            names = [p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()]
            self._read = lambda name: (path / name).read_bytes()
        elif zipfile.is_zipfile(path):
            archive = zipfile.ZipFile(path)
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            self._read = archive.read
        else:
            content = _tar(path)
            names = list(content)
            self._read = content.__getitem__
        self.names = sorted(names)  # with forward slashes

    def read(self, name: str) -> bytes:
        try:
            return self._read(name)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self.path}: '{name}' cannot be read ({error}).") from error

    def find(self, *file_names: str) -> str | None:
        """The shallowest file with one of these names, in any folder."""
        hits = [name for name in self.names if name.rsplit("/", 1)[-1] in file_names]
        return min(hits, key=lambda name: (name.count("/"), name), default=None)

    def need(self, *file_names: str) -> bytes:
        """The unzipped bytes of the file that `find` gives; an error says what to provide if there is none."""
        name = self.find(*file_names)
        if name is None:
            raise DataError(f"{self.path} has no file '{file_names[0]}'. Give {self.wanted}.")
        data = self.read(name)
        if data[:2] != b"\x1f\x8b":
            return data
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.path}: '{name}' is not a complete gzip file ({error}).") from error


def _tar(path: Path) -> dict[str, bytes]:
    """All files of a tar. A gzipped one can only be read forwards and readers have their own order."""
    try:
        with tarfile.open(path, "r:*") as archive:
            files = ((member.name, archive.extractfile(member)) for member in archive if member.isreg())
            return {name: file.read() for name, file in files if file is not None}
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is neither a folder nor a complete .tar, .tar.gz or .zip archive ({error})."
        ) from error
