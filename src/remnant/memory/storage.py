"""A memory as one safetensors file: tensors by path, all else as JSON in the header, a checksum over both. No pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from .checksum import KEY as CHECKSUM
from .checksum import checksum
from .errors import StateError

VERSION = 1
KEY = "remnant.memory"


def write(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Written beside its place and renamed into it: a file is whole or not there."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Name the file to write: {path / 'memory.safetensors'}, say.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}. Make it first.")
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    words = json.dumps(header)
    data = to_bytes(kept, {KEY: words, CHECKSUM: checksum(words, kept)})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Clones: the tensors are a map of the file, which may be overwritten while they live.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise StateError(f"{path} is not a whole safetensors file ({error}). Was its writing cut short?") from error
    if KEY not in metadata:
        raise StateError(f"{path} holds tensors, but no memory of ours: it was not written by GPM.save().")
    if CHECKSUM in metadata and metadata[CHECKSUM] != checksum(metadata[KEY], tensors):  # files from before have none
        raise StateError(f"{path} is damaged: it is not what was written to it. Load another copy of it.")
    try:
        header: Any = json.loads(metadata[KEY])
    except ValueError as error:
        raise StateError(f"{path} is damaged: its header cannot be read ({error}).") from error
    if not isinstance(header, dict):
        raise StateError(f"{path} is damaged: its header holds no memory.")
    if header.get("version") != VERSION:
        raise StateError(
            f"{path} has version {header.get('version')} of the format; this release reads version {VERSION}."
        )
    return header, tensors
