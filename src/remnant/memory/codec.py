"""A nested state as one safetensors file: tensors by path, the rest as JSON in the header, a checksum over both."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

VERSION = 1
LONGEST_HEADER = 100_000_000  # bytes; readers of the format accept no more
STATE, CHECKSUM = "remnant.state", "remnant.blake2b"

# The format's names of the types.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class DamagedError(Exception):
    """A file is cut short, was changed, or was never written by `pack`."""


class VersionError(Exception):
    """A file has another version of the format."""


def pack(state: dict[str, Any]) -> list[bytes | memoryview]:
    """Encodes a nested state of dicts, lists, tuples, tensors and JSON's values in pieces for `remnant.files.write_file`."""
    # It does not copy tensors on the CPU. For 60 MB, the library's writer takes half as long again, and blocks all other
    # Python threads for 40 to 90 ms.
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps({"version": VERSION, "state": _encode(state, "state", tensors)})
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": {STATE: skeleton, CHECKSUM: _checksum(skeleton, tensors)}}
    end, pieces = 0, []
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):  # so that each is aligned
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        pieces.append(_bytes_of(tensor))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise ValueError(f"All but the tensors takes {len(text):,} bytes and may take {LONGEST_HEADER:,}: use tensors.")
    return [len(text).to_bytes(8, "little"), text, *pieces]


def read(path: Path) -> dict[str, Any]:
    """Decodes a file that holds the pieces of `pack`, or raises DamagedError or VersionError."""
    path.open("rb").close()  # a file that may not be read is not a damaged one
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Clones: otherwise the tensors map the file, which may be replaced while they are in use.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        whole = STATE in metadata and metadata.get(CHECKSUM) == _checksum(metadata[STATE], tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise DamagedError(f"it is cut short or not a safetensors file ({error})") from error
    if STATE not in metadata:
        raise DamagedError("it is a safetensors file of another program")
    if not whole:
        raise DamagedError("its content has changed since it was written (its checksum is another)")
    content = json.loads(metadata[STATE])
    if content["version"] != VERSION:
        raise VersionError(f"it has version {content['version']} of the format; this release reads version {VERSION}")
    state: dict[str, Any] = _decode(content["state"], tensors)
    return state


def _checksum(skeleton: str, tensors: Mapping[str, Tensor]) -> str:
    """A checksum of tensors on the CPU in the order of their names; a file does not keep another order."""
    digest = blake2b(skeleton.encode(), digest_size=32)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _encode(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for a node, with its tensors put aside; a tensor or tuple becomes an object whose only key begins with a $."""
    match node:
        case None | bool() | int() | float() | str():
            return node
        case Tensor() if node.dtype in DTYPES and node.layout == torch.strided and not node.is_meta:
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
        case dict():
            return {key[key.startswith("$") :]: _decode(item, tensors) for key, item in node.items()}
        case list():
            return [_decode(item, tensors) for item in node]
    return node


def _join(path: str, key: str | int) -> str:
    """A path that is unique and ASCII, as the format requires."""
    name = json.dumps(str(key))[1:-1].replace("~", "~0").replace("/", "~1")
    return f"{path}/{name}"
