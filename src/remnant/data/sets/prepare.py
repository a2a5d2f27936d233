"""Turns original files that are already on this machine into a prepared dataset."""

from os import PathLike
from pathlib import Path

from ..errors import DataError
from .readers import read_original
from .sources import source
from .store import check_arrays, data_root, prepared_path, write_prepared


def add(name: str, path: str | PathLike[str]) -> Path:
    """Prepares a dataset, such as "mnist", from the folder or archive `path` that holds its original files.

    Returns:
        The file that was written. If the originals are missing, damaged or of another dataset, nothing is written.
    """
    entry, origin = source(name), Path(path).expanduser()
    if not origin.exists():
        raise DataError(f"{origin} does not exist. '{name}' needs {entry.wanted}.")
    arrays = read_original(name, origin)
    check_arrays(entry, arrays, origin)
    try:
        return write_prepared(name, arrays)
    except OSError as error:
        raise DataError(
            f"{prepared_path(name)} could not be written ({error.strerror or error}). "
            f"Make room in {data_root()}, or set REMNANT_DATA to another folder."
        ) from error
