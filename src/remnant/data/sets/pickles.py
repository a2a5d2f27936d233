"""Reads pickles of arrays. They can neither run code nor ask for more memory than their file takes."""

import io
import pickle
import pickletools
import re
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, explaining_damage


class _StandIn:
    """Stands in for an array or a dtype, because a few bytes of a pickle can ask numpy for gigabytes."""

    state: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


def _array(shape: tuple[int, ...], dtype: _StandIn, fortran: bool, data: str | bytes) -> NDArray[Any]:
    data = data.encode("latin1") if isinstance(data, str) else data  # Python 2 wrote text for bytes
    if not re.fullmatch(r"[biufSU]\d{1,3}", code := dtype.arguments[0]):
        raise ValueError(f"an array of type {code!r:.20}")
    real = np.dtype(code).newbyteorder(dtype.state[1] if dtype.state else "=")
    return np.frombuffer(data, real).reshape(shape, order="F" if fortran else "C")


def as_array(value: object) -> NDArray[Any]:
    """The array that a value of a pickle holds: an array, or a flat list of numbers or names."""
    if isinstance(value, _StandIn):
        return _array(*value.state[1:])
    # A list of lists could hold one list a billion times, and a long name would be copied for every other.
    if not isinstance(value, list | tuple) or any(
        not isinstance(item, int | str | bytes) or len(str(item)) > 100 for item in value
    ):
        raise ValueError(f"expected an array, or a list of numbers or short names, not this {type(value).__name__}")
    return np.array(value)


def _from_buffer(data: bytes, dtype: _StandIn, shape: tuple[int, ...], order: str) -> _StandIn:
    made = _StandIn()
    made.state = (1, shape, dtype, order == "F", data)
    return made


class _DataUnpickler(pickle.Unpickler):
    """Loads plain values and arrays, and refuses anything that could run code."""

    def __init__(self, data: bytes, where: object) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.where = where
        # The names that rebuild an array or a string, in the spellings of Python 2 and 3 and numpy 1 and 2.
        self.harmless: dict[tuple[str, str], Any] = {
            ("multiarray", "_reconstruct"): _StandIn,
            ("multiarray", "scalar"): lambda dtype, data: _array((1,), dtype, False, data)[0].item(),
            ("numeric", "_frombuffer"): _from_buffer,
            ("numpy", "ndarray"): _StandIn,
            ("numpy", "dtype"): _StandIn,
            # Pickles write bytes as text. The same text gives the same bytes, so a repeated one takes no memory.
            ("_codecs", "encode"): cache(lambda text, encoding: text.encode("latin1")),
        }

    def find_class(self, module: str, name: str) -> Any:
        key = (re.sub(r"^numpy\._?core\.", "", module), name)
        if key not in self.harmless:
            asks = f"it asks for '{module}.{name}', which data does not need and which could run code"
            raise DataError(f"{self.where} was not loaded: {asks}.")
        return self.harmless[key]


def read_pickle(data: bytes, where: object, *keys: str) -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text; these `keys` must be there. `as_array` turns values into arrays."""
    with explaining_damage(f"{where} is not a complete pickle"):
        for count, (opcode, number, _) in enumerate(pickletools.genops(data), 1):
            if "PUT" in opcode.name and isinstance(number, int) and number > count:
                raise ValueError("it numbers its values wrongly")  # the list of all values would be that long
        value = _DataUnpickler(data, where).load()
    if not isinstance(value, dict):
        raise DataError(f"{where} holds a {type(value).__name__}, not a dictionary of arrays.")
    found = {key.decode("latin1") if isinstance(key, bytes) else key: item for key, item in value.items()}
    if absent := set(keys) - found.keys():
        raise DataError(f"{where} has no '{min(absent)}'.")
    return found
