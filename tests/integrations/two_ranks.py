"""Training in two processes, which must end with the same weights and the same memory."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import nn

from children import START
from remnant import GPM


def equal_on_both_ranks(
    learn: Callable[[int, Path, int], None], folder: Path, make: Callable[[], nn.Module]
) -> list[GPM]:
    """Starts `learn(rank, folder, port)` twice and compares the weights and memories it saves. Returns the memories."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(learn, args=(folder, port), nprocs=2, start_method=START)
    saved = [torch.load(folder / f"weights{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert all(torch.equal(tensor, saved[1][name]) for name, tensor in saved[0].items())
    memories = [GPM.load(folder / f"rank{rank}.safetensors", make()) for rank in (0, 1)]
    for name, subspace in memories[0].subspaces.items():
        assert torch.equal(subspace.basis, memories[1].subspaces[name].basis)  # type: ignore[union-attr]
    return memories
