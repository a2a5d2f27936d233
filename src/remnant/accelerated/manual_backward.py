"""Steps on a CPU without autograd, for a chain of layers: sixteen calls a step where autograd makes hundreds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.methods import Method
from remnant.training import Work, rows_seen

from .linear_chain import LinearChain, is_linear_chain

WIDEST = 512  # beyond it a step costs what its products cost, however they are called
relu_backward = torch.ops.aten.threshold_backward.grad_input
TOGETHER = 50  # steps whose rows are fetched at once: few enough to stay in the cache


def fits(method: Method) -> bool:
    return (
        method.device.type == "cpu"
        and is_linear_chain(method)
        and all(len(weight) <= WIDEST for weight in method.network.parameters())
    )


class ManualBackwardSteps:
    """The same steps as EagerSteps', in another order of additions."""

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        self.method, self.train, self.batch = method, train, batch
        chain = LinearChain(method, train)
        self.rows = rows_seen(len(chain.y), batch)
        self.count = -(-self.rows // batch)
        self.loss = torch.zeros((), dtype=chain.x.dtype)
        whole, tail = divmod(self.rows, batch)
        self.of_batch = {
            rows: _Workplace(chain, rows, steps) for rows, steps in ((batch, whole), (tail, 1)) if rows * steps
        }

    def epoch(self) -> Work:
        self.loss.zero_()
        lr = float(self.method.lr)
        order = self.method.order(self.train, self.batch)[: self.rows]
        whole = self.rows // self.batch * self.batch
        for part in order[:whole].split(TOGETHER * self.batch):
            if len(part):
                self.loss += self.of_batch[self.batch].steps(part, lr)
                yield None
        if whole < self.rows:
            self.loss += self.of_batch[self.rows - whole].steps(order[whole:], lr)


class _Workplace:
    """Room for all that steps of one batch size compute: none is asked for while they run."""

    def __init__(self, chain: LinearChain, batch: int, steps: int) -> None:
        self.chain, self.batch = chain, batch
        self.outputs = [weight.new_empty(batch, len(weight)) for weight in chain.weights[:-1]]
        self.kept = [torch.empty_like(output) for output in self.outputs]
        self.deltas = [weight.new_empty(batch, len(weight)) for weight in chain.weights]
        self.label = torch.eye(len(chain.weights[-1]), dtype=chain.x.dtype)
        widths = [matrix.shape[1] for matrix in (chain.x, chain.inputs, self.label, self.label)]
        self.fetched = [chain.x.new_empty(batch * min(TOGETHER, steps), width) for width in widths]
        # Made once, as a view costs as much as a small product.
        self.weights_t, self.deltas_t = ([matrix.t() for matrix in each] for each in (chain.weights, self.deltas))

    @torch.no_grad()
    def steps(self, order: Tensor, lr: float) -> Tensor:
        """One step for every batch of these rows; gives the sum of the batches' losses."""
        chain = self.chain
        x, inputs, right, scores = (rows[: len(order)] for rows in self.fetched)
        y = chain.y[order]
        torch.index_select(chain.x, 0, order, out=x)
        torch.index_select(self.label, 0, y, out=right)
        if chain.inputs is chain.x:
            inputs = x
        else:
            torch.index_select(chain.inputs, 0, order, out=inputs)
        rate = -lr / self.batch  # the loss is the batch's mean
        parts = (rows.split(self.batch) for rows in (x, inputs, right, scores))
        for part in zip(*parts, strict=True):
            self._step(rate, *part)
        return F.cross_entropy(scores, y, reduction="sum") / self.batch

    def _step(self, rate: float, x: Tensor, inputs: Tensor, right: Tensor, scores: Tensor) -> None:
        """`x`: rows as the first layer sees them; `inputs`: what remains of them; `right`: a 1 at each row's label."""
        weights, outputs, deltas = self.chain.weights, self.outputs, self.deltas
        last = len(weights) - 1
        for layer in range(last):
            torch.mm(x, self.weights_t[layer], out=outputs[layer])
            x = torch.relu_(outputs[layer])
        torch.mm(x, self.weights_t[last], out=scores)
        torch.softmax(scores, 1, out=deltas[last]).sub_(right)
        for layer in range(last, 0, -1):
            before = deltas[layer - 1]
            torch.mm(deltas[layer], weights[layer], out=before)
            relu_backward(before, outputs[layer - 1], 0, grad_input=before)
        for layer in range(last, 0, -1):
            kept, projection = outputs[layer - 1], self.chain.projections[layer - 1]
            if projection is not None:
                kept = torch.mm(kept, projection, out=self.kept[layer - 1])
            weights[layer].addmm_(self.deltas_t[layer], kept, alpha=rate)
        weights[0].addmm_(self.deltas_t[0], inputs, alpha=rate)
