"""Tests what the protected weights do: a change ΔW with ΔW·x = 0 for every recorded row x must not change the outputs.

All weights are moved together by such a random change. If the outputs move, something else than the rule says reads a
weight, and moving the weights one by one names it.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..discovery import Protection, clean
from ..gram import outside_rows
from ..projection import full_precision
from ..protected import Bias, ProtectedWeight, Weights
from ..record.batches import all_tensors, blank, geometric, map_tensors, mix, spread_examples
from ..record.consolidation import summed
from ..record.recorder import Forward, Sinks, eager_eval, record_rows

EXAMPLES = 8  # few rows leave most directions free to change
SIZE = 0.1  # the change, relative to each parameter's RMS
LARGER = 10  # times that size, in the second test
NOISY = 1e-3  # outputs that change more from one pass to the next cannot be compared
NEGLIGIBLE = 1e-6  # a smaller unseen part of the change tests nothing
ROUNDINGS, NARROW_ROUNDINGS = 300, 4  # allowed change of the outputs in units of eps; bf16 and fp16 round ΔW itself


class Probe:
    """Moves weights in directions that the rows of a few examples cannot see, and compares the model's outputs."""

    def __init__(self, protection: Protection, forward: Forward) -> None:
        self.model, self.forward = protection.model, forward
        named = self.model.named_parameters(remove_duplicate=False)
        excluded = {parameter for name, parameter in named if not protection.selects(clean(name))}
        self._weights = [weight for weight in protection.weights if excluded.isdisjoint(weight.parameters)]
        self._device = next(self.model.parameters()).device
        self.examples: Any = None
        self._batches = 0
        self.path: set[nn.Module] = set()  # the layers with parameters that the last forward pass called
        self.before: tuple[list[Tensor], set[nn.Module]] | None = None  # the outputs for the examples, and their path
        types = {torch.finfo(weight.view.weight.dtype).eps for weight in self._weights}
        self._finest, self._coarsest = min(types, default=0.0), max(types, default=0.0)  # eps; also of modules' outputs
        self._finest_rounding = (ROUNDINGS if self._finest < 1e-6 else NARROW_ROUNDINGS) * self._finest
        self._jitters = False
        self.inconclusive = ""  # the reason, if nothing could be tested

    def remembering(self, model: nn.Module, batch: Any) -> object:
        """The forward function to record a task with: it keeps a few examples from the whole stream of batches."""
        some = spread_examples(batch, EXAMPLES)
        self.examples = mix(self.examples, some, self._batches) if self._batches else some
        self._batches += 1
        return self.forward(model, batch)

    @torch.no_grad()
    def uncovered(self, change: Mapping[Tensor, Tensor] | None = None) -> dict[ProtectedWeight, float]:
        """Returns the weights that are used in ways their rule does not cover → how far they moved the outputs.

        Moves the parameters by the unseen part of a random change, or of a given one. Processes share what they find.
        """
        found: dict[ProtectedWeight, float] = {}
        untested = [  # a weight that does not train now is tested when it has moved
            weight
            for weight in self._weights
            if any(p.requires_grad if change is None else bool(change[p].any()) for p in weight.parameters)
        ]
        with eager_eval(self.model):
            if any(
                type(m).train is not nn.Module.train or type(m).eval is not nn.Module.eval for m in self.model.modules()
            ):
                self.model.train()  # an own eval() may compute from the weights, so it is called after each change of them
            # The rows of a few examples may span a small layer's whole input space; fewer and smoother inputs span less.
            simplifications: Any = (lambda batch: batch, partial(spread_examples, count=1), geometric, blank)
            for simpler in simplifications:
                if untested and self.examples is not None and not found and not self.inconclusive:
                    found, untested = self._test(simpler(self.examples), untested, change)
        if change is not None:
            return found
        counts = summed(torch.tensor([weight in found for weight in self._weights], dtype=torch.int32))
        return {weight: found.get(weight, 0.0) for weight, count in zip(self._weights, counts, strict=True) if count}

    @torch.no_grad()
    def fast_path_differs(self) -> bool:
        """Whether torch's fused path for padded sequences gives other outputs than the modules, which it does not call."""
        if self.examples is None or not any(isinstance(m, nn.TransformerEncoder) for m in self.model.modules()):
            return False
        results = []
        with eager_eval(self.model), restored(self.model.buffers()):
            for enabled in (False, True):
                torch.backends.mha.set_fastpath_enabled(enabled)
                returned = all_tensors(self.forward(self.model, copy.deepcopy(self.examples)), set())
                results.append([y for x in returned if (y := _as_real(x.detach())) is not None])
        return change_of(*results) > self.rounding

    def _test(
        self, batch: Any, weights: Weights, change: Mapping[Tensor, Tensor] | None
    ) -> tuple[dict[ProtectedWeight, float], Weights]:
        """Returns the uncovered weights, and those that this batch cannot test."""
        rows: dict[ProtectedWeight, list[Tensor]] = {weight: [] for weight in weights}
        # Rows are copied, since a model may overwrite its inputs later.
        sinks = {w: (lambda more, kept=kept: kept.append(more.detach().clone())) for w, kept in rows.items()}
        try:
            before = self.outputs(batch, sinks)
        except Exception as error:  # a norm may refuse a single example, a model inputs that are no images
            if batch is self.examples:
                self.inconclusive = f"the model does not run on {EXAMPLES} examples alone: {error}"
            return {}, weights
        if batch is self.examples:
            self.before = before, self.path
        free: dict[Tensor, Tensor] = {}
        generator = torch.Generator(self._device).manual_seed(0)
        for parameter in {p: None for weight in weights for p in weight.parameters}:
            like = SIZE * parameter.double() if change is None else change[parameter]
            size = like.square().mean().sqrt().clamp(min=1e-9)
            free[parameter] = size * torch.randn(parameter.shape, generator=generator, device=self._device).double()
        unseen = {p: (change or free)[p].clone() for p in free}
        for weight in weights:  # a weight that is seen from two sides must be invisible from both
            weight.change_among(unseen, partial(outside_rows, rows[weight], torch.finfo(weight.view.weight.dtype).eps))
        # A bias may have parts that belong to other weights.
        parts = {weight: [Bias(weight.view.weight, None), *weight.biases] for weight in weights}
        norms = {
            (w, p): [float(p.part_of(x[p.parameter]).norm()) for x in (unseen, free)] for w in weights for p in parts[w]
        }
        testable = [w for w in weights if any(norms[w, p][0] > NEGLIGIBLE * norms[w, p][1] for p in parts[w])]
        untested = [weight for weight in weights if weight not in testable]

        def moved_by(changes: Mapping[Tensor, Tensor], some: Weights) -> Tensor:
            moving = {part for weight in some for part in parts[weight]}
            with restored({part.parameter for part in moving}):
                for part in moving:
                    value = part.part_of(part.parameter.detach())
                    value.copy_(value.double() + part.part_of(changes[part.parameter]))
                return relative_changes(before, self.outputs(batch))

        together, rounding, fine = moved_by(unseen, testable), self.allowed(before, batch), self._finest_rounding
        if before and bool((together <= rounding).all()) and change is None and testable:
            # A larger change also shows choices. It rounds more.
            free, larger = ({p: LARGER * x for p, x in changes.items()} for changes in (free, unseen))
            for weight in testable:
                if weight.view.one_hot and sum(w.view.weight is weight.view.weight for w in weights) == 1:
                    larger[weight.view.weight] = unseen[weight.view.weight].clone()
                    weight.change_among(larger, partial(_beside_used, weight, rows[weight]))
            unseen = larger
            together, fine = moved_by(unseen, testable), 3 * LARGER * fine
            rounding = (3 * rounding).clamp(min=fine)  # that of narrow outputs hardly grows
        if before and bool((together <= rounding).all()):
            return {}, untested
        noise = relative_changes(before, self.outputs(batch))
        if not before or bool((noise > NOISY).any()):
            self.inconclusive = "its outputs are random in eval mode" if before else "it returns no numbers"
            return {}, []
        if any(not x.is_floating_point() for x in before):  # whole numbers jump if two choices are equally good
            noise = torch.maximum(noise, moved_by({p: x / 1000 for p, x in unseen.items()}, testable))
        # Outputs that react strongly to any change of the weights also show more of the rounding.
        reaction = moved_by(free, testable)
        moving = {part for weight in testable for part in parts[weight]}
        squares = [
            [float(p.part_of(x).detach().double().square().sum()) for x in (free[p.parameter], p.parameter)]
            for p in moving
        ]
        moved, whole = (sqrt(sum(column)) for column in zip(*squares, strict=True))
        allowed = torch.maximum(10 * noise, rounding).maximum(fine * reaction * max(1.0, whole / max(moved, 1e-12)))
        alone = {weight: moved_by(unseen, [weight]) for weight in testable if bool((together > allowed).any())}
        found = {weight: float(by[by > allowed].max()) for weight, by in alone.items() if bool((by > allowed).any())}
        return found or dict.fromkeys(alone, float(together.max())), untested

    @property
    def rounding(self) -> float:
        """How far rounding alone may move an output that has the narrowest type of all weights and modules' outputs."""
        return (ROUNDINGS if self._coarsest < 1e-6 else NARROW_ROUNDINGS) * self._coarsest

    @torch.no_grad()
    def allowed(self, before: list[Tensor], batch: Any = None) -> Tensor:
        """How far rounding alone may move each output. Where types differ, rounding errors show which outputs they reach."""
        fine = self._finest_rounding
        if self._coarsest <= self._finest or not before:
            return torch.full((len(before),), fine)
        coarse = [p for p in self.model.parameters() if p.is_floating_point() and _eps(p) > self._finest]
        with restored(coarse):
            for parameter in coarse:
                parameter.copy_(_jittered(parameter))
            self._jitters = True
            try:
                return (NARROW_ROUNDINGS * relative_changes(before, self.outputs(batch))).clamp(min=fine)
            finally:
                self._jitters = False

    @torch.no_grad()
    def outputs(self, batch: Any = None, sinks: Sinks | None = None) -> list[Tensor]:
        """Returns all numbers that the model gives for a batch in eval mode; `sinks` get the rows of their weights."""
        batch = copy.deepcopy(self.examples if batch is None else batch)
        returned: list[Any] = []
        outputs: list[Any] = []
        running: list[nn.Module] = []
        self.path = set()

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            running.pop()
            self.path.update([module] if any(True for _ in module.parameters(recurse=False)) else [])
            types = {torch.finfo(x.dtype).eps for x in all_tensors(output, set()) if x.is_floating_point()}
            self._coarsest = max(self._coarsest, *types, 0.0)
            if self._jitters and isinstance(output, Tensor | list | tuple):
                output = map_tensors(output, lambda x: _jittered(x) if _eps(x) > self._finest else x)
            if not running:
                outputs.append(output)
            return output

        devices = [self._device] if self._device.type == "cuda" else []
        with ExitStack() as stack:
            for module in self.model.modules():
                if not isinstance(module, torch.jit.ScriptModule):
                    stack.callback(module.register_forward_pre_hook(lambda called, _: running.append(called)).remove)
                    stack.callback(module.register_forward_hook(after, always_call=True).remove)
            for context in (full_precision(self._device), restored(self.model.buffers())):
                stack.enter_context(context)
            stack.enter_context(torch.random.fork_rng(devices=devices))
            torch.manual_seed(0)  # the same random numbers every time
            record_rows(self.model, sinks or {}, [batch], lambda model, x: returned.append(self.forward(model, x)))
        # A forward function may add a penalty on the weights to a loss, so a single number that it returns counts last.
        given = [x for x in all_tensors(returned, set()) if x.ndim or not outputs]
        numbers = [_as_real(x.detach()) for x in all_tensors([outputs, given], set())]
        found = [x for x in numbers if x is not None and x.numel()]
        return [x for x in found if x.is_floating_point() or self._coarsest < 1e-6]  # choices of narrow numbers flip


def _as_real(x: Tensor) -> Tensor | None:
    """An output as float64 or whole numbers; None if it is nested."""
    if x.is_nested:
        return None
    dense = x.to_dense() if x.layout is not torch.strided else x
    if x.is_complex():
        return torch.view_as_real(dense).double()
    return dense.double() if x.is_floating_point() else dense


def _beside_used(weight: ProtectedWeight, rows: list[Tensor], stack: Tensor) -> Tensor:
    """Moves unused rows of a table beside used ones, where a search for the nearest row may choose them instead."""
    used = torch.cat([part.flatten() for part in rows]).unique() if rows else torch.zeros(0)
    if not len(used):
        return LARGER * stack
    now = weight.view.matrix(weight.view.weight.detach()).double()
    nearest = used[torch.arange(now.shape[2], device=used.device) % len(used)]
    return (now[:, :, nearest] - now + stack).index_fill(2, used, 0)


def relative_changes(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """Returns the relative change of each output; for whole numbers, the share that differs."""
    if [x.shape for x in before] != [x.shape for x in after]:
        return torch.full((max(1, len(before)),), torch.inf)
    changes = []
    for x, y in zip(before, after, strict=True):
        finite, y = x.isfinite(), y.to(x.device)
        if not torch.equal(finite, y.isfinite()):
            changes.append(torch.inf)
        elif x.is_floating_point():
            changes.append(float((x - y)[finite].norm() / x[finite].norm().clamp(min=1e-12)))
        else:
            changes.append(float((x != y).double().mean()))
    return torch.tensor(changes, dtype=torch.float64)


def change_of(before: list[Tensor], after: list[Tensor]) -> float:
    """Returns the largest relative change among the outputs."""
    return float(relative_changes(before, after).max()) if before else 0.0


def _eps(tensor: Tensor) -> float:
    return float(torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() else 0.0


def _jittered(x: Tensor) -> Tensor:
    """A tensor with an error of up to one unit in the last place."""
    signs = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).sign().to(x.device)
    return (x.double() * (1 + _eps(x) * signs)).to(x.dtype)


@contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Gives tensors back the values that they had before the block."""
    before = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in before:
            tensor.copy_(value)
