"""A nested state as one safetensors file: tensors by path, the rest as JSON in the header, a checksum over both."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .checksum import KEY as CHECKSUM
from .checksum import bytes_of, checksum

VERSION = 1
LONGEST = 100_000_000  # a header's bytes, for those who read the format
SKELETON = "remnant.state"

# As the format calls them.
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
    """A file that is not what was written: cut short, or changed since."""


class VersionError(Exception):
    """A file of another version of the format."""


def pack(state: dict[str, Any]) -> list[bytes | memoryview]:
    """The file's content, in pieces. Dicts with string keys, lists, tuples, tensors, numbers, strings, booleans and None.

    Tensors come from any device and return on the CPU, bit for bit; two that share memory return as two. Those on the CPU
    are not copied: the format's library would do so, and hold up every other thread meanwhile.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps({"version": VERSION, "state": _encode(state, "state", tensors)})
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": {SKELETON: skeleton, CHECKSUM: checksum(skeleton, kept)}}
    end, pieces = 0, []
    for name, tensor in sorted(kept.items(), key=lambda item: -item[1].element_size()):  # so that each is aligned
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        pieces.append(bytes_of(tensor))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST:
        raise ValueError(
            f"A checkpoint's words and numbers take {len(text):,} bytes, and may take {LONGEST:,}: use tensors."
        )
    return [len(text).to_bytes(8, "little"), text, *pieces]


def read(path: Path) -> dict[str, Any]:
    """What `pack` was given; DamagedError where the file is not whole."""
    path.open("rb").close()  # a file that may not be read is not a damaged one
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Clones: the tensors are a map of the file, which may be removed or replaced while they live.
            # keys(), since such a file is not iterable itself.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        skeleton = metadata[SKELETON]
        whole = metadata[CHECKSUM] == checksum(skeleton, tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise DamagedError(f"it cannot be read ({error})") from error
    if not whole:
        raise DamagedError("its checksum does not fit its content")
    content = json.loads(skeleton)
    if content["version"] != VERSION:
        raise VersionError(f"it has version {content['version']} of the format; this release reads version {VERSION}")
    state: dict[str, Any] = _decode(content["state"], tensors)
    return state


def _encode(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for `node`; what JSON has no word for is an object with a single key after a `$`."""
    match node:
        case None | bool() | int() | float() | str():
            return node
        case Tensor():
            if node.dtype not in DTYPES or node.layout != torch.strided or node.is_meta:
                raise TypeError(
                    f"A checkpoint cannot hold {path}: a {node.dtype} tensor ({node.layout}, {node.device})."
                )
            tensors[path] = node
            return {"$tensor": path}
        case dict():
            for key in node:
                if not isinstance(key, str):
                    raise TypeError(f"A checkpoint's keys are strings: {path} has {key!r} ({type(key).__name__}).")
            # A key of the caller's that begins with $ gets a second one, and so is never one of ours.
            return {
                "$" * key.startswith("$") + key: _encode(item, _join(path, key), tensors) for key, item in node.items()
            }
        case list():
            return [_encode(item, _join(path, index), tensors) for index, item in enumerate(node)]
        case tuple():
            return {"$tuple": [_encode(item, _join(path, index), tensors) for index, item in enumerate(node)]}
    raise TypeError(
        f"A checkpoint cannot hold {path}: a {type(node).__name__}. Use tensors, numbers, strings, None, lists and dicts."
    )


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
    """Different for different paths, and ASCII, as the format's names must be encodable."""
    name = json.dumps(str(key))[1:-1].replace("~", "~0").replace("/", "~1")
    return f"{path}/{name}"
