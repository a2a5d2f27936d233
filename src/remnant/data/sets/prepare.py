"""Turns original files, already on this machine, into a prepared set."""

from os import PathLike
from pathlib import Path

from ..errors import DataError
from .readers import read_original
from .sources import source
from .store import check_arrays, data_root, prepared_path, write_prepared


def add(name: str, path: str | PathLike[str]) -> Path:
    """Reads set `name` from its original files in `path` and writes NAME.npz; checked first, written whole or not at all."""
    entry, origin = source(name), Path(path).expanduser()
    if not origin.exists():
        raise DataError(f"{origin} does not exist. '{name}' needs {entry.wanted}.")
    arrays = read_original(name, origin)
    check_arrays(entry, arrays, origin)
    try:
        return write_prepared(name, arrays)
    except OSError as error:
        where = data_root()
        raise DataError(
            f"{prepared_path(name)} could not be written ({error.strerror or error}). "
            f"Make room in {where}, or set REMNANT_DATA to another folder."
        ) from error
