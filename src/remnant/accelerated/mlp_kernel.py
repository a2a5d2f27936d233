"""The kernel of `cuda/mlp.cu` for one network's sizes, compiled once."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .cuda_program import Kernel, KernelError
from .linear_chain import LinearChain

CLUSTER, THREADS = 8, 256  # blocks that share a network; threads in each
WIDEST, MOST_INPUTS, MOST_CLASSES, MOST_ROWS = 128, 1024, 16, 16  # what its registers hold
SOURCE = Path(__file__).parent / "cuda" / "mlp.cu"


class MlpKernel:
    """Takes steps of one batch size on the chain's own weights."""

    def __init__(self, chain: LinearChain, batch: int) -> None:
        hidden1, hidden2, head = chain.weights
        device = hidden1.device
        capability = torch.cuda.get_device_capability(device)
        if capability < (9, 0):
            have = "{}.{}".format(*capability)
            raise KernelError(f"it needs a GPU with clusters of blocks (compute capability 9.0); this one has {have}.")
        aligned = hidden1.shape[1] % 4 == 0 and chain.x.data_ptr() % 16 == 0 and chain.inputs.data_ptr() % 16 == 0
        sizes = {
            "INPUTS": hidden1.shape[1],
            "HIDDEN1": hidden1.shape[0],
            "HIDDEN2": hidden2.shape[0],
            "CLASSES": head.shape[0],
            "BATCH": batch,
            "CLUSTER": CLUSTER,
            "ALIGNED": int(aligned),  # rows of x begin where sixteen bytes can be copied at once
        }
        if (chain.x.dtype, chain.y.dtype) != (torch.float32, torch.int64):
            raise KernelError(
                f"it reads float32 and int64, and the data is {chain.x.dtype} with labels in {chain.y.dtype}."
            )
        self.chain, self.batch = chain, batch
        self.projections = [None if each is None else each.contiguous() for each in chain.projections]
        with _one_at_a_time:  # those who want the same wait for it
            compiled = _compiled(tuple(sizes.items()), device)
        if isinstance(compiled, KernelError):
            raise compiled
        self.kernel = compiled

    def take(self, order: Tensor, lr: Tensor, loss: Tensor) -> None:
        """One step for every batch of these rows; adds their losses up."""
        chain = self.chain
        data = (chain.x, chain.inputs, chain.y, order)
        steps = len(order) // self.batch
        self.kernel.launch(CLUSTER, THREADS, *data, *chain.weights, *self.projections, lr, loss, steps)


_one_at_a_time = threading.Lock()


@cache
def _compiled(sizes: tuple[tuple[str, int], ...], device: torch.device) -> Kernel | KernelError:
    """What went wrong is kept too: it would again, after as long."""
    try:
        return Kernel(SOURCE, "train_mlp", dict(sizes), device)
    except KernelError as error:
        return error
