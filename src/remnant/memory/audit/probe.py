"""Tests what the protected weights do: a change ΔW with ΔW·x = 0 for every recorded row x must not change the outputs.

All weights are moved together by such a random change. If the outputs move, something else than the rule says reads a
weight, and moving the weights one by one names it.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from math import sqrt
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..discovery import Protection, clean
from ..gram import Energy, Gram
from ..projection import full_precision
from ..protected import Bias, ProtectedWeight, Weights
from ..record.batches import blank, geometric, mix, spread_examples
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
        self._eps = max((torch.finfo(weight.view.weight.dtype).eps for weight in self._weights), default=0.0)
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

        The parameters are moved by the unseen part of a random change, which counts what any process finds, or of a given one.
        """
        found: dict[ProtectedWeight, float] = {}
        untested = [  # a weight that does not train now is tested when it has moved
            weight
            for weight in self._weights
            if any(p.requires_grad if change is None else bool(change[p].any()) for p in weight.parameters)
        ]
        with eager_eval(self.model):
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
                returned = _all_tensors(self.forward(self.model, copy.deepcopy(self.examples)), set())
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
        free = dict(change or {})
        generator = torch.Generator(self._device).manual_seed(0)
        for parameter in {p: None for weight in weights for p in weight.parameters} if change is None else ():
            size = SIZE * parameter.double().square().mean().sqrt().clamp(min=1e-8)
            free[parameter] = size * torch.randn(parameter.shape, generator=generator, device=self._device).double()
        unseen = {p: free[p].double().clone() for weight in weights for p in weight.parameters}
        for weight in weights:  # a weight that is seen from two sides must be invisible from both
            weight.change_among(unseen, partial(_outside_rows, weight, rows[weight]))
        # A bias may have parts that belong to other weights.
        parts = {weight: [Bias(weight.view.weight, None), *weight.biases] for weight in weights}
        norms = {
            (w, p): [float(p.part_of(x[p.parameter]).norm()) for x in (unseen, free)] for w in weights for p in parts[w]
        }
        testable = [w for w in weights if any(norms[w, p][0] > NEGLIGIBLE * norms[w, p][1] for p in parts[w])]
        untested = [weight for weight in weights if weight not in testable]

        def moved_by(changes: Mapping[Tensor, Tensor], some: Weights) -> float:
            moving = {part for weight in some for part in parts[weight]}
            with restored({part.parameter for part in moving}):
                for part in moving:
                    value = part.part_of(part.parameter.detach())
                    value.copy_(value.double() + part.part_of(changes[part.parameter]))
                return change_of(before, self.outputs(batch))

        together, rounding = moved_by(unseen, testable) if before else 0.0, self.rounding
        if before and together <= rounding and change is None and testable:
            # A larger change also shows choices, such as that of the nearest row of a codebook. It rounds more.
            free, unseen = ({p: LARGER * x for p, x in changes.items()} for changes in (free, unseen))
            together, rounding = moved_by(unseen, testable), 3 * LARGER * rounding
        if before and together <= rounding:
            return {}, untested
        noise = change_of(before, self.outputs(batch))
        if not before or noise > NOISY:
            self.inconclusive = "its outputs are random in eval mode" if before else "it returns no numbers"
            return {}, []
        # Outputs that react strongly to any change of the weights also show more of the rounding.
        reaction = moved_by(free, testable)
        moving = {part for weight in testable for part in parts[weight]}
        squares = [
            [float(p.part_of(x).detach().double().square().sum()) for x in (free[p.parameter], p.parameter)]
            for p in moving
        ]
        moved, whole = (sqrt(sum(column)) for column in zip(*squares, strict=True))
        allowed = max(10 * noise, rounding * max(1.0, reaction, reaction * whole / max(moved, 1e-12)))
        if together <= allowed:
            return {}, untested
        found = {weight: by for weight in testable if (by := moved_by(unseen, [weight])) > allowed}
        return found or dict.fromkeys(testable, together), untested

    @property
    def rounding(self) -> float:
        """How far rounding alone may move the outputs, in the narrowest type that a weight or a module's output has."""
        return (ROUNDINGS if self._eps < 1e-6 else NARROW_ROUNDINGS) * self._eps

    @torch.no_grad()
    def outputs(self, batch: Any = None, sinks: Sinks | None = None) -> list[Tensor]:
        """Returns all numbers that the model gives for a batch in eval mode; `sinks` get the rows of their weights."""
        batch = copy.deepcopy(self.examples if batch is None else batch)
        returned: list[Any] = []
        outputs: list[Any] = []
        running: list[nn.Module] = []
        self.path = set()

        def after(module: nn.Module, args: Any, output: Any) -> None:
            running.pop()
            self.path.update([module] if any(True for _ in module.parameters(recurse=False)) else [])
            if not running:
                outputs.append(output)
            kinds = {x.dtype for x in _all_tensors(output, set()) if x.is_floating_point()}
            self._eps = max([self._eps, *(torch.finfo(kind).eps for kind in kinds)])

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
        given = [x for x in _all_tensors(returned, set()) if x.ndim or not outputs]
        numbers = [_as_real(x.detach()) for x in _all_tensors([outputs, given], set())]
        return [x for x in numbers if x is not None and x.numel()]


def _as_real(x: Tensor) -> Tensor | None:
    """An output as float64, or None if it holds whole numbers: those jump."""
    if x.is_nested or not (x.is_floating_point() or x.is_complex()):
        return None
    dense = x.to_dense() if x.layout is not torch.strided else x
    return (torch.view_as_real(dense) if x.is_complex() else dense).double()


def _all_tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that a model may return, also inside objects of the user's own."""
    if isinstance(value, nn.Module | type | FunctionType | MethodType) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name))
    parts = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name) for name in slots)]
    if isinstance(value, Mapping | list | tuple | set):
        parts = list(value.values() if isinstance(value, Mapping) else value)
    for part in parts:
        yield from _all_tensors(part, seen)


def _outside_rows(weight: ProtectedWeight, rows: list[Tensor], stack: Tensor) -> Tensor:
    """The part of a stack (groups, outputs, n) that gives 0 for every row, up to the rounding of the weight's type."""
    rows = [part for part in rows if part.numel()]
    if not rows:
        return stack
    if weight.view.one_hot:
        return stack.index_fill(2, torch.cat([part.flatten() for part in rows]).unique(), 0)
    tolerance = min(8 * torch.finfo(weight.view.weight.dtype).eps, 1e-3)
    if tolerance < 1e-7:
        energies = [Energy(own.double(), is_rows=True) for own in torch.cat(rows, dim=1)]
    else:  # exact to 1e-8, and faster
        gram = Gram(weight.view.groups, stack.shape[2], stack.device)
        for part in rows:
            gram.add(part)
        energies = [gram.energy(group) for group in range(weight.view.groups)]
    outside = []
    for matrix, energy in zip(stack, energies, strict=True):
        if energy.is_rows:
            basis, sizes, _ = torch.linalg.svd(energy.tensor.mT, full_matrices=False)
        else:
            least = tolerance**2 * energy.total() * torch.eye(stack.shape[2], dtype=torch.float64, device=stack.device)
            if not int(torch.linalg.cholesky_ex(energy.tensor - least)[1]):
                outside.append(torch.zeros_like(matrix))  # the rows have more than the tolerance in every direction
                continue
            values, basis = torch.linalg.eigh(energy.tensor)
            sizes = values.clamp(min=0).sqrt()
        basis = basis[:, sizes > tolerance * sizes.max()]
        for _ in range(2):  # once leaves rounding behind
            matrix = matrix - (matrix @ basis) @ basis.mT
        outside.append(matrix)
    return torch.stack(outside)


def change_of(before: list[Tensor], after: list[Tensor]) -> float:
    """Returns the largest relative change among the outputs."""
    if [x.shape for x in before] != [x.shape for x in after]:
        return float("inf")
    changes = [0.0]
    for x, y in zip(before, after, strict=True):
        finite, y = x.isfinite(), y.to(x.device)
        if not torch.equal(finite, y.isfinite()):
            return float("inf")
        changes.append(float((x - y)[finite].norm() / x[finite].norm().clamp(min=1e-12)))
    return max(changes)


@contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Gives tensors back the values that they had before the block."""
    before = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in before:
            tensor.copy_(value)
