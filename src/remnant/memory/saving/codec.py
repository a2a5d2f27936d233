"""A nested state as one safetensors file: tensors by path, the rest as JSON in the header, a checksum over both."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from io import BufferedReader
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = 1
LONGEST_HEADER = 2**24  # bytes; Python's objects take up to twenty times as many
CHUNK = 2**20  # bytes
STATE, CHECKSUM = "remnant.state", "remnant.blake2b"

# The types by the format's names.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class DamagedError(Exception):
    """A file is cut short, was changed, or was never written by `pack`."""


class VersionError(Exception):
    """A file has another version of the format."""


def pack(state: dict[str, Any]) -> list[bytes | memoryview]:
    """Encodes a nested state of dicts, lists, tuples, tensors and JSON's values in pieces for `remnant.files.write_file`."""
    # It does not copy tensors on the CPU. For 60 MB, safetensors' own writer takes half as long again, and blocks all other
    # Python threads for 40 to 90 ms.
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps({"version": VERSION, "state": _encode(state, "state", tensors)}, allow_nan=False)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, Any] = {
        "__metadata__": {STATE: skeleton, CHECKSUM: _checksum(skeleton, tensors, lambda tensor: [_bytes_of(tensor)])}
    }
    end, pieces = 0, []
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):  # so that each is aligned
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        pieces.append(_bytes_of(tensor))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise ValueError(
            f"A state may have {LONGEST_HEADER:,} bytes besides its tensors, not {len(text):,}: use tensors."
        )
    return [len(text).to_bytes(8, "little"), text, *pieces]


def read(path: Path) -> dict[str, Any]:
    """Decodes a file that holds the pieces of `pack`, or raises DamagedError or VersionError.

    It compares the checksum before it makes any tensor, so a damaged file takes no more memory than its header.
    """
    with open(path, "rb") as file:
        try:
            return _read(file)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"it is cut short or not a safetensors file ({error!r})") from error


def _read(file: BufferedReader) -> dict[str, Any]:
    metadata, places = _read_header(file)
    if STATE not in metadata:
        raise DamagedError("it is a safetensors file from another program")
    if metadata.get(CHECKSUM) != _checksum(metadata[STATE], places, partial(_chunks, file)):
        raise DamagedError("its content has changed since it was written (its checksum does not match)")
    content = json.loads(metadata[STATE])
    if (version := content["version"]) != VERSION:
        raise VersionError(f"it has version {version} of the format; this release reads version {VERSION}")
    state = _decode(content["state"], {name: _read_tensor(file, place) for name, place in places.items()})
    if not isinstance(state, dict):
        raise TypeError(f"its state is a {type(state).__name__}")
    return state


@dataclass(frozen=True)
class _Place:
    """The place of a tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def end(self) -> int:
        return self.start + prod(self.shape) * self.dtype.itemsize


def _read_header(file: BufferedReader) -> tuple[dict[str, Any], dict[str, _Place]]:
    """The metadata, and the places of the tensors, which must fill the rest of the file without gaps."""
    size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if length > min(size - 8, LONGEST_HEADER):
        raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
    header = json.loads(file.read(length))
    metadata, places, end = header.pop("__metadata__", {}), {}, 8 + length
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, offsets = tuple(entry["shape"]), [8 + length + offset for offset in entry["data_offsets"]]
        if any(type(x) is not int or x < 0 for x in shape) or prod(max(x, 1) for x in shape) > 2**56:
            raise ValueError(f"{name!r} has the shape {shape}")
        place = places[name] = _Place(DTYPES[entry["dtype"]], shape, end)
        if offsets != [end, end := place.end]:
            raise ValueError(f"{name!r} has the offsets {entry['data_offsets']}")
    if end != size:
        raise ValueError(f"{end:,} bytes of {size:,} belong to a tensor")
    return metadata, places


def _read_tensor(file: BufferedReader, place: _Place) -> Tensor:
    tensor = torch.empty(place.shape, dtype=place.dtype, device="cpu")
    file.seek(place.start)
    if file.readinto(_bytes_of(tensor)) != tensor.nbytes:
        raise ValueError("it became shorter while it was read")
    return tensor


def _chunks(file: BufferedReader, place: _Place) -> Iterator[bytes]:
    file.seek(place.start)
    for start in range(place.start, place.end, CHUNK):
        yield file.read(min(CHUNK, place.end - start))


def _checksum(skeleton: str, tensors: Mapping[str, Tensor | _Place], bytes_of: Callable[[Any], Iterable[Any]]) -> str:
    """A checksum of the JSON and of all tensors in the order of their names; a file does not keep another order."""
    digest = blake2b(skeleton.encode(), digest_size=32)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        for piece in bytes_of(tensor):
            digest.update(piece)
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _encode(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Strict JSON for a node, with its tensors put aside. What JSON lacks becomes an object whose only key begins with a $."""
    match node:
        case float() if not isfinite(node):
            return {"$float": str(node)}
        case None | bool() | int() | float() | str():
            return node
        case Tensor() if node.dtype in NAMES and node.layout == torch.strided and not node.is_meta:
            tensors[path] = node
            return {"$tensor": path}
        case dict() if all(isinstance(key, str) for key in node):
            items = {key: _encode(item, _join(path, key), tensors) for key, item in node.items()}
            # A user's key that begins with $ gets a second one.
            return {f"${key}" if key.startswith("$") else key: item for key, item in items.items()}
        case list() | tuple():
            parts = [_encode(item, _join(path, index), tensors) for index, item in enumerate(node)]
            return parts if isinstance(node, list) else {"$tuple": parts}
    if isinstance(node, dict):
        key = next(key for key in node if not isinstance(key, str))
        raise TypeError(f"The keys of a state are strings: {path} has {key!r} ({type(key).__name__}).")
    kind = f"{node.dtype} tensor ({node.layout}, {node.device})" if isinstance(node, Tensor) else type(node).__name__
    raise TypeError(f"A state cannot hold {path}: a {kind}. Use tensors, numbers, strings, None, lists and dicts.")


def _decode(node: Any, tensors: dict[str, Tensor]) -> Any:
    match node:
        case {"$tensor": name}:
            return tensors[name]
        case {"$tuple": items}:
            return tuple(_decode(item, tensors) for item in items)
        case {"$float": text}:
            return float(text)
        case dict():
            return {key[key.startswith("$") :]: _decode(item, tensors) for key, item in node.items()}
        case list():
            return [_decode(item, tensors) for item in node]
    return node


def _join(path: str, key: str | int) -> str:
    """A path that is unique and ASCII, as the format requires."""
    name = json.dumps(str(key))[1:-1].replace("~", "~0").replace("/", "~1")
    return f"{path}/{name}"
