"""The original files of a dataset, in a folder or an archive. Nothing is unpacked, so no archive can write anywhere."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from ..errors import DataError, explaining_damage
from .sources import Source


class Originals:
    """The files of a dataset in a folder, .tar, .tar.gz/.tgz or .zip. All bytes come through `read`, which limits them."""

    def __init__(self, path: Path, entry: Source) -> None:
        self.path, self.wanted, self.limit = path, entry.wanted, entry.limit
        self._read: Callable[[str], bytes]
        if path.is_dir():
            self._sizes = {p.relative_to(path).as_posix(): p.stat().st_size for p in path.rglob("*") if p.is_file()}
            self._read = lambda name: (path / name).read_bytes()
        elif zipfile.is_zipfile(path):
            self.check_size(path.stat().st_size)
            archive = zipfile.ZipFile(path)
            self._sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
            # Without a size, ZipFile.read unpacks all bytes before it compares them with the declared size.
            self._read = lambda name: archive.open(name).read(self._sizes[name] + 1)
        else:
            tar, members = self._tar()
            self._sizes = {name: member.size for name, member in members.items()}
            self._read = lambda name: cast(IO[bytes], tar.extractfile(members[name])).read()
        self.names = sorted(self._sizes)  # with forward slashes

    def check_size(self, size: int, name: str = "") -> None:
        """Refuses a size, of a file or of all images together, that no edition of the dataset has."""
        if size > self.limit:
            where = f"{self.path}: '{name}'" if name else str(self.path)
            raise DataError(f"{where} holds over {self.limit:,} bytes, more than the dataset has. Give {self.wanted}.")

    def read(self, name: str) -> bytes:
        """The bytes of a file, unzipped if they are a gzip file."""
        self.check_size(self._sizes[name], name)
        with explaining_damage(f"{self.path}: '{name}' is damaged", f"Give {self.wanted}."):
            return self._unzipped(self._read(name), name)

    def _unzipped(self, data: bytes, name: str = "") -> bytes:
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(self.limit + 1)
            self.check_size(len(data), name)
        return data

    def find(self, *file_names: str) -> str | None:
        """The shallowest file with one of these names, in any folder."""
        hits = [name for name in self.names if name.rsplit("/", 1)[-1] in file_names]
        return min(hits, key=lambda name: (name.count("/"), name), default=None)

    def need(self, *file_names: str) -> bytes:
        """The unzipped bytes of the file that `find` gives; an error says what to provide if there is none."""
        name = self.find(*file_names)
        if name is None:
            raise DataError(f"{self.path} has no file '{file_names[0]}'. Give {self.wanted}.")
        return self.read(name)

    def _tar(self) -> tuple[tarfile.TarFile, dict[str, tarfile.TarInfo]]:
        """A tar and its files. It is unzipped in memory, because readers have their own order."""
        self.check_size(self.path.stat().st_size)
        problem = f"{self.path} is neither a folder nor a complete .tar, .tar.gz or .zip archive"
        with explaining_damage(problem, f"Give {self.wanted}."):
            archive = tarfile.open(fileobj=io.BytesIO(self._unzipped(self.path.read_bytes())), mode="r:")  # noqa: SIM115
            return archive, {member.name: member for member in archive if member.isreg()}
