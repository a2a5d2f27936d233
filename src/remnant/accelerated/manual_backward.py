"""Steps with a backward pass written by hand, for an MLP without biases and a method that only projects gradients.

A step takes sixteen calls on a CPU, where autograd takes hundreds. `fused_mlp` takes the same steps on a GPU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.data import Split
from remnant.memory import full_precision
from remnant.methods import Method
from remnant.models import MLP
from remnant.training import Steps, Work

FORMS = ("projected-sgd", "low-rank-sgd")
WIDEST = 512
STEPS_TOGETHER = 50  # steps whose rows are fetched at once: few enough to stay in the cache
relu_backward = torch.ops.aten.threshold_backward.grad_input


def is_linear_chain(method: Method) -> bool:
    """Whether each step is W ← W − lr·δᵀ·(x·P) for every layer, with a matrix P that is fixed within an epoch (Eq. 6–7).

    A layer may compute with W + U·V, where U and V follow their own gradients ("low-rank-sgd").

    Layers wider than `WIDEST` are left to autograd: there, matrix products dominate, and its overhead does not matter.
    """
    parameters = dict(method.network.named_parameters())
    return (
        type(method.network) is MLP
        and all(name.endswith("weight") and p.requires_grad and len(p) <= WIDEST for name, p in parameters.items())
        and method.fast_form in FORMS
        and method.uses_plain_sgd
    )


class LinearChain:
    """The tensors of such a step: the weights, the head's last, and the data, whose inputs are projected only once."""

    def __init__(self, method: Method, train: Split) -> None:
        network = method.network
        assert isinstance(network, MLP)
        head = f"heads.{method.task}" if network.multi_head else "head"
        names = [*(f"hidden.{number}" for number in range(len(network.hidden))), head]
        self.weights: list[Tensor] = [
            layer.weight.detach() for layer in (*network.hidden, network.head_of(method.task))
        ]
        projections, low_rank = method.layer_projections(), method.low_rank_parts
        self.low_rank = [low_rank.get(name) for name in names]
        first, *self.projections = (projections.get(name) for name in names)  # None: the whole gradient is used
        self.x, self.y = train.x.flatten(1).contiguous(), train.y
        self.label_smoothing = method.label_smoothing
        with full_precision(self.x.device):  # the projection removes most of an input, so rounding would weigh more
            self.inputs = self.x if first is None else self.x @ first


class ManualBackwardSteps(Steps):
    """The steps of `EagerSteps`, up to the order of additions."""

    def __init__(self, method: Method, train: Split, batch: int) -> None:
        super().__init__(method, train, batch)
        self.loss = torch.zeros((), dtype=train.x.dtype)
        self.version = -1  # the `step_version` that the buffers were made for

    def epoch(self) -> Work[None]:
        self.loss.zero_()
        lr = float(self.method.lr)
        order = self.new_order()
        if self.version != self.method.step_version:
            self.version = self.method.step_version
            chain, sizes = LinearChain(self.method, self.train), ((self.batch, self.whole_batches), (self.tail, 1))
            self.buffers = {rows: _Buffers(chain, rows, steps) for rows, steps in sizes if rows * steps}
        whole = self.rows - self.tail
        for part in order[:whole].split(STEPS_TOGETHER * self.batch):
            if len(part):
                self.loss += self.buffers[self.batch].take_steps(part, lr)
                yield None
        if self.tail:
            self.loss += self.buffers[self.tail].take_steps(order[whole:], lr)


class _Buffers:
    """Preallocated tensors for steps of one batch size, and the steps themselves."""

    def __init__(self, chain: LinearChain, batch: int, steps: int) -> None:
        self.chain, self.batch = chain, batch
        self.outputs = [weight.new_empty(batch, len(weight)) for weight in chain.weights[:-1]]
        self.projected = [torch.empty_like(output) for output in self.outputs]
        self.deltas = [weight.new_empty(batch, len(weight)) for weight in chain.weights]
        classes = len(chain.weights[-1])
        targets = (1 - chain.label_smoothing) * torch.eye(classes, dtype=chain.x.dtype)
        self.targets = targets + chain.label_smoothing / classes  # by label
        widths = [matrix.shape[1] for matrix in (chain.x, chain.inputs, self.targets, self.targets)]
        self.fetched = [chain.x.new_empty(batch * min(STEPS_TOGETHER, steps), width) for width in widths]
        parts = ((batch, pair[0].shape[1]) if pair else (0, 0) for pair in chain.low_rank)
        self.codes = [chain.x.new_empty(shape) for shape in parts]  # x·Vᵀ, where a layer has U·V
        self.coded_deltas = [torch.empty_like(code) for code in self.codes]  # δ·U
        # Transposed once, because a view costs as much as a small product.
        self.weights_t, self.deltas_t = ([matrix.t() for matrix in each] for each in (chain.weights, self.deltas))

    @torch.no_grad()
    def take_steps(self, order: Tensor, lr: float) -> Tensor:
        """Takes one step for every batch of these rows. Returns the sum of the batches' losses."""
        chain = self.chain
        x, inputs, target, scores = (rows[: len(order)] for rows in self.fetched)
        y = chain.y[order]
        torch.index_select(chain.x, 0, order, out=x)
        torch.index_select(self.targets, 0, y, out=target)
        if chain.inputs is chain.x:
            inputs = x
        else:
            torch.index_select(chain.inputs, 0, order, out=inputs)
        rate = -lr / self.batch  # the loss is the batch's mean
        parts = (rows.split(self.batch) for rows in (x, inputs, target, scores))
        for part in zip(*parts, strict=True):
            self._step(rate, *part)
        return F.cross_entropy(scores, y, reduction="sum", label_smoothing=chain.label_smoothing) / self.batch

    def _step(self, rate: float, x: Tensor, inputs: Tensor, target: Tensor, scores: Tensor) -> None:
        """One step from the rows `x`, the same rows projected (`inputs`) and the probabilities to learn."""
        weights, outputs, deltas, last = self.chain.weights, self.outputs, self.deltas, len(self.chain.weights) - 1
        seen, computed = [x, *outputs], [*outputs, scores]  # the inputs and outputs of each layer
        for layer, output in enumerate(computed):
            torch.mm(seen[layer], self.weights_t[layer], out=output)
            if pair := self.chain.low_rank[layer]:
                output.addmm_(torch.mm(seen[layer], pair[1].t(), out=self.codes[layer]), pair[0].t())
            if layer < last:
                torch.relu_(output)
        torch.softmax(scores, 1, out=deltas[last]).sub_(target)
        for layer in range(last, 0, -1):
            before = deltas[layer - 1]
            torch.mm(deltas[layer], weights[layer], out=before)
            if pair := self.chain.low_rank[layer]:
                before.addmm_(torch.mm(deltas[layer], pair[0], out=self.coded_deltas[layer]), pair[1])
            relu_backward(before, outputs[layer - 1], 0, grad_input=before)
        for layer in range(last, 0, -1):
            rows, projection = outputs[layer - 1], self.chain.projections[layer - 1]
            if projection is not None:
                rows = torch.mm(rows, projection, out=self.projected[layer - 1])
            weights[layer].addmm_(self.deltas_t[layer], rows, alpha=rate)
        weights[0].addmm_(self.deltas_t[0], inputs, alpha=rate)
        if self.chain.low_rank[0]:
            torch.mm(deltas[0], self.chain.low_rank[0][0], out=self.coded_deltas[0])
        for layer, pair in enumerate(self.chain.low_rank):
            if pair:
                pair[0].addmm_(self.deltas_t[layer], self.codes[layer], alpha=rate)
                pair[1].addmm_(self.coded_deltas[layer].t(), seen[layer], alpha=rate)
