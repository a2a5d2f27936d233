"""Reads pickles of plain values and numpy arrays, and refuses anything that could run code."""

import io
import pickle
from typing import Any

from ...errors import DataError

# The names that rebuild an array or a string, in the spellings of Python 2 and 3 and numpy 1 and 2.
_ALLOWED = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
    ("builtins", "bytearray"),
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(f"it asks for '{module}.{name}', which data does not need and which could run code")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_pickle(data: bytes, where: object) -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text."""
    try:
        value = _Plain(io.BytesIO(data), encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{where} was not loaded: {error}.") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{where} is not a complete pickle ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(f"{where} holds a {type(value).__name__}, not a dictionary of arrays.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): item for key, item in value.items()}
