"""One test of the probe: it changes weights in directions that a batch's rows cannot see, and compares the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..subspaces.gram import Gram, GroupGram
from ..weights.distributed import sharded_like, whole
from ..weights.protected import Bias, ProtectedWeight, Weights

if TYPE_CHECKING:
    from .probe import Probe

SIZE = 0.1  # the change, relative to each parameter's RMS
LARGER = 10  # times that size, in the second try
NOISY = 1e-3  # outputs that change more from one pass to the next cannot be compared
HUGE = 1000  # times as large as ordinary outputs: the −1e9 of a mask, for example
ENOUGH_TO_SPAN = 2  # a sample of rows: twice as many rows as columns usually span all directions
NEGLIGIBLE = 1e-6  # a smaller unseen part of the change tests nothing
ZERO = 1e-60  # smaller outputs count as zero; the smallest float32 is 1e-45

Change = Mapping[Tensor, Tensor]
Found = dict[ProtectedWeight, float]  # uncovered weight → how far it moved the outputs


class Trial:
    """Records the rows of a batch, moves weights in directions that the rows cannot see, and compares the outputs."""

    def __init__(self, probe: Probe, batch: Any, weights: Weights) -> None:
        self._probe, self._batch, self._weights = probe, batch, weights
        self._rows: dict[ProtectedWeight, list[Tensor]] = {weight: [] for weight in weights}
        # Rows are copied, since a model may overwrite its inputs later.
        sinks = {w: (lambda more, kept=kept: kept.append(more.detach().clone())) for w, kept in self._rows.items()}
        self.before = probe.outputs(batch, sinks)
        # A bias may have parts that belong to other weights.
        self._parts = {weight: [Bias(weight.view.weight, None), *weight.biases] for weight in weights}
        self.untested: Weights = []  # whose input space the rows span, so that no change is invisible

    def spanned(self, weight: ProtectedWeight) -> bool:
        return span_everything(self._rows[weight], torch.finfo(weight.view.weight.dtype).eps)

    def uncovered(self, change: Change | None) -> Found:
        """Moves all weights together, by the unseen part of a random change or of a given one; one by one to find names."""
        free, unseen, testable = self._changes(change)
        self.untested = [weight for weight in self._weights if weight not in testable]
        probe, before = self._probe, self.before
        together = self._moved_by(unseen, testable)
        rounding, fine = probe.allowed(before, self._batch), probe.finest_rounding
        if before and bool((together <= rounding).all()) and change is None and testable:
            # A larger change also shows choices. It rounds more.
            free, larger = ({p: LARGER * x for p, x in changes.items()} for changes in (free, unseen))
            if tables := [weight for weight in testable if weight.view.one_hot]:
                self._move_beside_used(tables, unseen, larger)
            unseen = larger
            together, fine = self._moved_by(unseen, testable), 3 * LARGER * fine
            rounding = (3 * rounding).clamp(min=fine)  # that of narrow outputs hardly grows
        if before and bool((together <= rounding).all()):
            return {}
        noise = relative_changes(before, probe.outputs(self._batch))
        if not before or bool((noise > NOISY).any()):
            probe.inconclusive = "its outputs are random in eval mode" if before else "it returns no numbers"
            self.untested = []
            return {}
        if any(not x.is_floating_point() for x in before):  # whole numbers jump if two choices are equally good
            noise = torch.maximum(noise, self._moved_by({p: x / 1000 for p, x in unseen.items()}, testable))
        noise = torch.maximum(noise, self._rounding_after(unseen, testable))
        allowed = torch.maximum(10 * noise, rounding).maximum(fine * self._sensitivity(free, testable))
        return self._named(unseen, testable, together, allowed)

    def _changes(self, change: Change | None) -> tuple[dict[Tensor, Tensor], dict[Tensor, Tensor], Weights]:
        """Returns a random change of the weights, its part (or that of a given change) that the rows cannot see, and the
        weights that this unseen part moves.
        """
        free: dict[Tensor, Tensor] = {}
        device = next(self._probe.model.parameters()).device
        generator = torch.Generator(device).manual_seed(0)
        for parameter in {p: None for weight in self._weights for p in weight.parameters}:
            like = SIZE * parameter.double() if change is None else change[parameter]
            size = (whole(like.square().sum()) / parameter.numel()).sqrt().clamp(min=1e-9)
            noise = torch.randn(parameter.shape, generator=generator, device=device).double()
            free[parameter] = sharded_like(size * noise, parameter)
        unseen = {p: (change or free)[p].clone() for p in free}
        for weight in self._weights:  # the change of a two-sided weight must be invisible from both sides
            eps = torch.finfo(weight.view.weight.dtype).eps
            weight.change_among(unseen, partial(outside_rows, self._rows[weight], eps))
        testable = []
        for weight, parts in self._parts.items():
            norms = [[float(whole(p.part_of(x[p.parameter]).norm())) for x in (unseen, free)] for p in parts]
            testable += [weight] if any(part > NEGLIGIBLE * all_of_it for part, all_of_it in norms) else []
        return free, unseen, testable

    def _move_beside_used(self, tables: Weights, unseen: Change, larger: dict[Tensor, Tensor]) -> None:
        for weight in tables:
            if sum(w.view.weight is weight.view.weight for w in self._weights) == 1:
                larger[weight.view.weight] = unseen[weight.view.weight].clone()
                weight.change_among(larger, partial(_beside_used, weight, self._rows[weight]))

    def _moved_by(self, changes: Change, weights: Weights) -> Tensor:
        """How far each output moves if these weights do."""
        return relative_changes(self.before, self._outputs_with(changes, weights))

    def _outputs_with(self, changes: Change, weights: Weights) -> list[Tensor]:
        moving = {part for weight in weights for part in self._parts[weight]}
        with restored({part.parameter for part in moving}):
            for part in moving:
                value = part.part_of(part.parameter.detach())
                value.copy_(value.double() + part.part_of(changes[part.parameter]))
            return self._probe.outputs(self._batch)

    def _rounding_after(self, unseen: Change, weights: Weights) -> Tensor:
        """How far rounding moves the outputs once the weights have moved: after a large step a deep network magnifies it."""
        generator = torch.Generator().manual_seed(1)
        rounded = {}
        for parameter, x in unseen.items():
            noise = torch.randn(x.shape, generator=generator, dtype=torch.float64, device="cpu").to(parameter.device)
            rounded[parameter] = x + torch.finfo(parameter.dtype).eps * x.abs().max() * sharded_like(noise, parameter)
        return relative_changes(*(self._outputs_with(changes, weights) for changes in (unseen, rounded)))

    def _sensitivity(self, free: Change, testable: Weights) -> Tensor:
        """Outputs that react strongly to any change of the weights also show more of the rounding."""
        moving = {part for weight in testable for part in self._parts[weight]}
        squares = [
            [float(whole(p.part_of(x).detach().double().square().sum())) for x in (free[p.parameter], p.parameter)]
            for p in moving
        ]
        moved, present = (sqrt(sum(column)) for column in zip(*squares, strict=True))
        return self._moved_by(free, testable) * max(present / max(moved, 1e-12), moved / max(present, 1e-12))

    def _named(self, unseen: Change, testable: Weights, together: Tensor, allowed: Tensor) -> Found:
        """The weights that move the outputs alone, or all of them if only several together do."""
        alone = {weight: self._moved_by(unseen, [weight]) for weight in testable if bool((together > allowed).any())}
        found = {weight: float(by[by > allowed].max()) for weight, by in alone.items() if bool((by > allowed).any())}
        return found or dict.fromkeys(alone, float(together.max()))


def outside_rows(rows: list[Tensor], eps: float, stack: Tensor) -> Tensor:
    """The part of a stack (groups, outputs, n) that gives 0 for every row (or one-hot index), up to a rounding of eps."""
    rows = [part for part in rows if part.numel()]
    if not rows:
        return stack
    if not rows[0].is_floating_point():
        return stack.index_fill(2, torch.cat([part.flatten() for part in rows]).unique(), 0)
    tolerance = min(8 * eps, 1e-3)
    # A power of two brings each row to a size near 1: a small one would pass for the rounding of a large one.
    rows = [torch.ldexp(x.double(), -torch.frexp(x.abs().amax(2, keepdim=True).double()).exponent) for x in rows]
    if tolerance < 1e-7:
        grams = [GroupGram(own.double(), is_rows=True, exact=True) for own in torch.cat(rows, dim=1)]
    else:  # exact to 1e-8, and faster
        layer_gram = Gram(len(stack), stack.shape[2], stack.device)
        for part in rows:
            layer_gram.add(part)
        grams = [layer_gram.of_group(group) for group in range(len(stack))]
    outside = []
    for matrix, gram in zip(stack, grams, strict=True):
        if gram.exact:
            basis, sizes, _ = torch.linalg.svd(gram.tensor.mT, full_matrices=False)
        elif gram.is_rows:
            values, vectors = torch.linalg.eigh(gram.tensor @ gram.tensor.mT)  # a GPU's SVD takes ten times as long
            sizes = values.clamp(min=0).sqrt()
            basis = gram.tensor.mT @ (vectors / sizes.clamp(min=torch.finfo(torch.float64).tiny))
        else:
            least = tolerance**2 * gram.energy() * torch.eye(stack.shape[2], dtype=torch.float64, device=stack.device)
            if not int(torch.linalg.cholesky_ex(gram.tensor - least)[1]):
                outside.append(torch.zeros_like(matrix))  # the rows have more than the tolerance in every direction
                continue
            values, basis = torch.linalg.eigh(gram.tensor)
            sizes = values.clamp(min=0).sqrt()
        basis = basis[:, sizes > tolerance * sizes.max()]
        for _ in range(2):  # once leaves rounding behind
            matrix = matrix - (matrix @ basis) @ basis.mT
        outside.append(matrix)
    return torch.stack(outside)


def span_everything(rows: list[Tensor], eps: float) -> bool:
    """Whether `outside_rows` would leave nothing, because some of the rows already reach every direction of every group."""
    groups, _, size = rows[0].shape if rows and rows[0].is_floating_point() else (0, 0, 0)
    step = max(1, sum(part.shape[1] for part in rows) // max(1, ENOUGH_TO_SPAN * size))
    some = torch.cat([part[:, ::step] for part in rows], dim=1) if groups else torch.zeros(0, 0, 1, device="cpu")
    tolerance = min(8 * eps, 1e-3)
    if some.shape[1] < size or not groups or tolerance < 1e-7:
        return False
    gram = Gram(groups, size, some.device)
    gram.add(some)
    norms = [torch.linalg.vector_norm(part, dim=(1, 2), dtype=torch.float64) for part in rows]
    least = tolerance**2 * torch.stack(norms).square().sum(0).to(gram.device)
    margin = gram.matrix() - torch.diag_embed(least[:, None].expand(-1, size))
    return not bool(torch.linalg.cholesky_ex(margin)[1].any())


def _beside_used(weight: ProtectedWeight, rows: list[Tensor], stack: Tensor) -> Tensor:
    """Moves unused rows of a table beside used ones, where a search for the nearest row may choose them instead."""
    used = torch.cat([part.flatten() for part in rows]).unique() if rows else torch.zeros(0, device="cpu")
    if not len(used):
        return LARGER * stack
    now = weight._stack(weight.parameters, by_rows=True).double()  # like `stack`: of a sharded weight, the same part
    nearest = used[torch.arange(now.shape[2], device=used.device) % len(used)]
    return (now[:, :, nearest] - now + stack).index_fill(2, used, 0)


def relative_changes(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """Returns the relative change of each output; for whole numbers, the share that differs."""
    if [x.shape for x in before] != [x.shape for x in after]:
        return torch.full((max(1, len(before)),), torch.inf, device="cpu")
    changes = []
    for x, y in zip(before, after, strict=True):
        finite, y = x.isfinite(), y.to(x.device)
        if not torch.equal(finite, y.isfinite()):
            changes.append(torch.inf)
        elif x.is_floating_point():
            parts = [finite]
            if bool((x.abs() > HUGE).any()):  # huge outputs would hide what the others do
                parts = [finite & ordinary(x), finite & ~ordinary(x)]
            changes.append(max(float((x - y)[part].norm() / x[part].norm().clamp(min=ZERO)) for part in parts))
        else:
            changes.append(float((x != y).double().mean()))
    return torch.tensor(changes, dtype=torch.float64, device="cpu")


def percent(change: float) -> str:
    """A change as a person reads it: 7.8% or 0.0029%, never 0.0%."""
    return f"{change:.1%}" if change >= 0.001 else f"{100 * change:.2g}%"


def ordinary(x: Tensor) -> Tensor:
    """Tells which outputs have an ordinary size, unlike a mask's −1e9. Most may be masked, so the smallest set the scale."""
    if x.dtype is torch.bool or not bool(((sizes := x.abs().nan_to_num(0.0)) > HUGE).any()):
        return torch.ones_like(x, dtype=torch.bool)
    present = sizes[sizes > 0].flatten()
    small = sizes <= HUGE * present.kthvalue(1 + len(present) // 100).values.clamp(min=1.0)
    if x.ndim > 1:  # a huge example has small outputs, too, with the rounding of huge ones
        typical = sizes.flatten(1).median(dim=1).values
        small &= (typical <= HUGE * typical.min().clamp(min=1.0)).reshape(-1, *[1] * (x.ndim - 1))
    return small


def change_of(before: list[Tensor], after: list[Tensor]) -> float:
    """Returns the largest relative change among the outputs."""
    return float(relative_changes(before, after).max()) if before else 0.0


@contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """After the block, puts back the values that the tensors had before it."""
    before = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in before:
            tensor.copy_(value)


@contextmanager
def placed(values: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Puts these values into the tensors for the block."""
    with restored(values):
        for tensor, value in values.items():
            tensor.detach().copy_(value)
        yield
