"""Tests what the protected weights do: a change ΔW with ΔW·x = 0 for every recorded row x must not change the outputs.

All weights are moved together by such a random change. If the outputs move, something else than the rule says reads a
weight, and moving the weights one by one names it.
"""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..record.batches import all_tensors, blank, geometric, map_tensors, mix, spread_examples, tensors_in
from ..record.recorder import Forward, Sinks, eager_eval, record_rows
from ..subspaces.projection import full_precision
from ..weights.discovery import Protection, clean
from ..weights.distributed import object_from_process, sharded_like, summed, whole
from ..weights.protected import ProtectedWeight, Weights
from .trial import NOISY, Change, Found, Trial, change_of, relative_changes, restored

EXAMPLES = 8  # few rows leave most directions free to change
TOGETHER = 2**28  # numbers in the weights that are moved at a time; their changes take 24 bytes for each
ROUNDINGS, NARROW_ROUNDINGS = 300, 4  # allowed change of the outputs in units of eps; bf16 and fp16 round ΔW itself


class Probe:
    """Moves weights in directions that the rows of a few examples cannot see, and compares the model's outputs."""

    def __init__(self, protection: Protection, forward: Forward) -> None:
        self.model, self.forward = protection.model, forward
        self._sharded, self._parallel = protection.sharded, protection.parallel
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
        self.finest_rounding = (ROUNDINGS if self._finest < 1e-6 else NARROW_ROUNDINGS) * self._finest
        self._jitters = False
        self.inconclusive = ""  # the reason, if nothing could be tested
        self._seed, self._draws = 0, False  # whether the last forward pass drew random numbers
        self.is_random = False  # whether the outputs depend on them, as with dropout that stays on

    def forward_keeping_examples(self, model: nn.Module, batch: Any) -> object:
        """Calls the forward function, and keeps a few examples from all of the task's batches."""
        some = spread_examples(batch, EXAMPLES)
        self.examples = mix(self.examples, some, self._batches) if self._batches else some
        self._batches += 1
        return self.forward(model, batch)

    def share_examples(self) -> None:
        """Takes those of rank 0, for a sharded model: its forward passes need all processes, in the same order."""
        if self.examples is not None:
            self.examples = object_from_process(0, map_tensors(self.examples, Tensor.cpu))

    @torch.no_grad()
    def uncovered(self, change: Change | None = None, unseen: Weights | None = None) -> Found:
        """Finds the weights that are used in ways their rule does not cover, and how far they move the outputs.

        It moves the parameters by the part of a random change, or of a given one, that the recorded rows cannot see. Processes
        share what they find. The layers of `unseen` weights got no input, so the outputs must not depend on these at all.
        """
        untested = [  # a weight that does not train now is tested when it has moved
            weight
            for weight in self._weights
            if any(p.requires_grad if change is None else bool(whole(change[p].abs().sum())) for p in weight.parameters)
        ]
        with eager_eval(self.model):
            if any(
                type(m).train is not nn.Module.train or type(m).eval is not nn.Module.eval for m in self.model.modules()
            ):
                self.model.train()  # an own eval() may compute from the weights, so it is called after each change of them
            found = self._test(untested, change) if untested and self.examples is not None else {}
            found |= {weight: 1.0 for weight in unseen or () if weight not in found and self._reads(weight)}
        if change is not None:
            return found
        counts = summed(torch.tensor([weight in found for weight in self._weights], dtype=torch.int32, device="cpu"))
        return {weight: found.get(weight, 0.0) for weight, count in zip(self._weights, counts, strict=True) if count}

    def _test(self, weights: Weights, change: Change | None) -> Found:
        """Tests weights with the examples, and with simpler inputs where the examples' rows span the whole input space."""
        one, untested = spread_examples(self.examples, 1), Weights()
        # If the patches of one image already span the input space, testing a convolution with all images is useless and slow.
        if convolutions := [weight for weight in weights if weight.view.weight.ndim > 2]:
            try:
                trial = Trial(self, one, convolutions)
                untested = [weight for weight in convolutions if trial.spanned(weight)]
            except Exception:  # a norm may refuse a single example
                one = self.examples
        found, left = self._try(self.examples, [weight for weight in weights if weight not in untested], change)
        untested += left
        simplifications: list[Callable[[Any], Any]] = [lambda batch: batch, geometric, blank]
        for simpler in simplifications:
            if untested and not found and not self.inconclusive:
                found, untested = self._try(simpler(one), untested, change)
        return found

    def _reads(self, weight: ProtectedWeight) -> bool:
        """Whether the outputs depend on a weight, however little: training may make a small effect large."""
        if self.examples is None or self.inconclusive:
            return False
        before, generator = self.outputs(), torch.Generator().manual_seed(0)
        noise = change_of(before, self.outputs())
        with restored(weight.parameters):
            for parameter in weight.parameters:
                other = torch.randn(parameter.shape, generator=generator, device="cpu").to(parameter.device)
                parameter.copy_(sharded_like(other, parameter))
            return change_of(before, self.outputs()) > 10 * noise

    def _try(self, batch: Any, weights: Weights, change: Change | None) -> tuple[Found, Weights]:
        """Returns the uncovered weights, and those that this batch cannot test."""
        found: Found = {}
        untested: Weights = []
        large = sum(weight.view.weight.numel() for weight in weights) > TOGETHER
        for part in _parts(weights) if large else [weights]:
            if found or self.inconclusive:
                break
            try:
                trial = Trial(self, batch, part)
            except Exception as error:  # a model may refuse inputs that are not images
                if batch is self.examples:
                    self.inconclusive = f"the model does not run on {EXAMPLES} examples alone: {error}"
                return {}, weights
            if batch is self.examples:
                self.before = trial.before, self.path
                self.is_random = self._draws and self._differs_by_seed(trial.before)
            found = trial.uncovered(change)
            untested += trial.untested
        return found, untested

    def _differs_by_seed(self, before: list[Tensor]) -> bool:
        self._seed = 1
        try:
            return change_of(before, self.outputs()) > NOISY
        finally:
            self._seed = 0

    @torch.no_grad()
    def mixing(self) -> float:
        """How far an example's outputs change with the others in its batch; 0 if only by rounding."""
        size = next((len(x) for x in tensors_in(self.examples) if x.ndim), 0)
        if size < 2:
            return 0.0
        change, together = 0.0, [x for x in self.outputs() if x.ndim]
        for is_last in (False, True):  # the first steps of a causal model ignore the later ones
            half = slice(size // 2, None) if is_last else slice(size // 2)
            few = map_tensors(self.examples, partial(_rows_of, half, size))
            alone = [x for x in self.outputs(few) if x.ndim]
            pairs = zip(together, alone, strict=True)
            theirs = [x[len(x) - len(y) :] if is_last else x[: len(y)] for x, y in pairs]
            change = max(change, change_of(theirs, alone))
        return change if change > NOISY else 0.0

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

    @property
    def rounding(self) -> float:
        """How far rounding alone may move an output that has the narrowest type of all weights and modules' outputs."""
        return (ROUNDINGS if self._coarsest < 1e-6 else NARROW_ROUNDINGS) * self._coarsest

    @torch.no_grad()
    def allowed(self, before: list[Tensor], batch: Any = None) -> Tensor:
        """How far rounding alone may move each output. Where types differ, rounding errors show which outputs they reach."""
        fine = self.finest_rounding
        if self._coarsest <= self._finest or not before:
            return torch.full((len(before),), fine, device="cpu")
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
            torch.manual_seed(self._seed)  # the same random numbers every time
            states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
            record_rows(self.model, sinks or {}, [batch], lambda model, x: returned.append(self.forward(model, x)))
            after_pass = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
            self._draws = not all(map(torch.equal, states, after_pass))
        # A forward function may add a penalty on the weights to a loss, so a single number that it returns counts last.
        given = [x for x in all_tensors(returned, set()) if x.ndim or not outputs]
        numbers = [_as_real(x.detach()) for x in all_tensors([outputs, given], set())]
        found = [x for x in numbers if x is not None and x.numel()]
        if self._parallel:  # a parallel layer may return its own part: the sum is the same in all processes
            found = [summed(x.long() if x.dtype is torch.bool else x) for x in found]
        return [x for x in found if x.is_floating_point() or self._coarsest < 1e-6]  # choices of narrow numbers flip


def _parts(weights: Weights) -> list[Weights]:
    """Splits weights into parts that are moved together, for the memory that their random changes take."""
    sides: dict[Tensor, Weights] = {}
    for weight in weights:
        sides.setdefault(weight.view.weight, []).append(weight)  # a two-sided weight moves for both sides
    parts: list[Weights] = [[]]
    for group in sides.values():
        if parts[-1] and sum(weight.view.weight.numel() for weight in (*parts[-1], group[0])) > TOGETHER:
            parts.append([])
        parts[-1] += group
    return parts


def _as_real(x: Tensor) -> Tensor | None:
    """An output as float64 or whole numbers; None if it is nested."""
    if x.is_nested:
        return None
    x = whole(x)
    dense = x.to_dense() if x.layout is not torch.strided else x
    if x.is_complex():
        return torch.view_as_real(dense).double()
    return dense.double() if x.is_floating_point() else dense


def _rows_of(rows: slice, size: int, x: Tensor) -> Tensor:
    return x[rows] if x.ndim and len(x) == size else x


def _eps(tensor: Tensor) -> float:
    return float(torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() else 0.0


def _jittered(x: Tensor) -> Tensor:
    """A tensor with an error of up to one unit in the last place."""
    signs = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), device="cpu").sign().to(x.device)
    return (x.double() * sharded_like(1 + _eps(x) * signs, x)).to(x.dtype)
