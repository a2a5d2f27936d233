"""An epoch of steps as one GPU kernel, for the small fully connected network and methods that only project."""

from __future__ import annotations

import torch

from remnant.data import Split
from remnant.methods import Method
from remnant.models import MLP
from remnant.training import Work, rows_seen

from .cuda_program import KernelError
from .linear_chain import LinearChain, is_linear_chain
from .mlp_kernel import MOST_CLASSES, MOST_INPUTS, MOST_ROWS, WIDEST, MlpKernel


def fits(method: Method, batch: int) -> bool:
    """Whether the kernel can take the method's steps; whether the machine can have the kernel is known once it is asked."""
    network = method.network
    return (
        isinstance(network, MLP)
        and len(network.hidden) == 2
        and max(p.shape[0] for p in network.hidden.parameters()) <= WIDEST
        and next(network.hidden.parameters()).shape[1] <= MOST_INPUTS
        and max(network.classes) <= MOST_CLASSES
        and batch <= MOST_ROWS
        and method.device.type == "cuda"
        and all(p.dtype == torch.float32 and p.is_contiguous() for p in network.parameters())
        and is_linear_chain(method)
    )


class FusedSteps:
    """The same steps as EagerSteps', in another order of additions, once `compile` has been called.

    `missing` then says why this machine has no such kernel, where it has none.
    """

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        self.method, self.train, self.batch = method, train, batch
        self.chain = LinearChain(method, train)
        self.rows = rows_seen(len(self.chain.y), batch)
        self.count = -(-self.rows // batch)
        self.loss = torch.zeros((), device=self.chain.x.device)
        self.whole = self.rows // batch * batch
        self.kernels: dict[int, MlpKernel] = {}
        self.missing: KernelError | None = None

    def compile(self) -> None:
        """Takes seconds, the first time: for a thread of its own."""
        try:
            for rows in {min(self.batch, self.rows), self.rows - self.whole} - {0}:
                self.kernels[rows] = MlpKernel(self.chain, rows)
        except KernelError as error:
            self.missing = error

    def epoch(self) -> Work:
        self.loss.zero_()
        order = self.method.order(self.train, self.batch)[: self.rows]
        # What the kernel reads, whatever the method gave; and kept, since it is read when the kernel's turn comes.
        self.order = order.to(self.loss.device, torch.int64).contiguous()
        for part in (self.order[: self.whole], self.order[self.whole :]):
            if len(part):
                self.kernels[min(self.batch, len(part))].take(part, self.method.lr, self.loss)
        yield None
