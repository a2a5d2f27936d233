"""Whether a file is what was written: a checksum over its words and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import Tensor

KEY = "remnant.blake2b"  # where a file's header has it


def checksum(words: str, tensors: Mapping[str, Tensor]) -> str:
    """Of tensors on the CPU, in the order of their names, as a file does not keep theirs."""
    sum_of = blake2b(words.encode(), digest_size=32)
    for name, tensor in sorted(tensors.items()):
        sum_of.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sum_of.update(bytes_of(tensor))
    return sum_of.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous tensor's memory; no copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
