"""An epoch of steps as one GPU kernel, for the small fully connected network and methods that only project."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from remnant.data import Split
from remnant.methods import Method
from remnant.models import MLP

from .chain import Chain, is_chain
from .work import Work, rows_seen

WIDEST, MOST_CLASSES, MOST_ROWS = 128, 16, 16  # what the kernel keeps on the chip


def fits(method: Method, batch: int) -> bool:
    """Whether the kernel can take the method's steps; it multiplies in TF32, so that must be allowed."""
    network = method.network
    return (
        isinstance(network, MLP)
        and len(network.hidden) == 2
        and max(p.shape[0] for p in network.hidden.parameters()) <= WIDEST
        and max(network.classes) <= MOST_CLASSES
        and batch <= MOST_ROWS
        and method.device.type == "cuda"
        and torch.get_float32_matmul_precision() != "highest"
        and importlib.util.find_spec("triton") is not None
        and is_chain(method)
    )


class FusedSteps:
    """The same steps as EagerSteps', in another order of additions."""

    def __init__(self, method: Method, train: Split, batch: int, *, precision: str = "tf32") -> None:
        self.method, self.train, self.batch, self.precision = method, train, batch, precision
        chain = self.chain = Chain(method, train)
        self.rows = rows_seen(len(chain.y), batch)
        self.count = -(-self.rows // batch)
        self.loss = torch.zeros((), device=chain.x.device)
        self.projects = any(projection is not None for projection in chain.projections)
        self.projections = [
            torch.eye(weight.shape[1], device=weight.device) if projection is None else projection.contiguous()
            for weight, projection in zip(chain.weights[1:], chain.projections, strict=True)
        ]

    def epoch(self) -> Work:
        self.loss.zero_()
        order = self.method.order(self.train, self.batch)[: self.rows]
        whole = self.rows // self.batch * self.batch
        self._launch(order[:whole], self.batch)
        self._launch(order[whole:], self.rows - whole)
        yield None

    def _launch(self, order: Tensor, batch: int) -> None:
        from .mlp_kernel import train_mlp

        if not len(order):
            return
        chain = self.chain
        hidden1, hidden2, head = chain.weights
        train_mlp[(1,)](
            chain.x, chain.inputs, chain.y, order, *chain.weights, *self.projections, self.method.lr, self.loss,
            len(order) // batch,
            inputs=hidden1.shape[1], hidden1=hidden1.shape[0], hidden2=hidden2.shape[0], classes=head.shape[0],
            batch=batch, PROJECT=self.projects, PRECISION=self.precision,
            PROJECTING="tf32x3" if self.precision == "tf32" else self.precision,
            B=MOST_ROWS, K=64, H=WIDEST, C=MOST_CLASSES, num_warps=8, num_stages=3,
        )  # fmt: skip
