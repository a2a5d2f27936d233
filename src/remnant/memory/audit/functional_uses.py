"""What a forward pass does with a model's tensors beside calling its layers: weights multiplied elsewhere, buffers read.

Hooks see the layers' inputs only. `F.linear(h, self.embedding.weight)` passes them by, and so does a running average that
a module subtracts. Torch's function mode sees both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..discovery import Protection, Selection, clean
from ..precision import full_precision
from ..record.batches import Forward, tensors_in

# Functions whose result is a product of a weight and an input: what a layer does, and what only a layer's rule protects.
PRODUCT = re.compile(
    r"(bi)?linear|(__r?)?matmul(__)?|b?mm|mv|add(b?mm|mv)|baddbmm|einsum|tensordot|inner|v?dot|cdist|cosine_similarity|"
    r"conv(_transpose)?[123]d|convolution|embedding(_bag)?|__getitem__|index_select|gather|take(_along_dim)?|"
    r"multi_head_attention_forward|scaled_dot_product_attention"
)
WRITES = re.compile(r"__(setitem|set|iadd|isub|imul|itruediv|ipow|iand|ior|ixor)__|.*[^_]_")
READS_A_NUMBER = re.compile(r"item|tolist|numpy|__(float|int|bool|index|array)__")
NEAR = 1e-3  # an input computed twice is the same input, whatever its last bits
EXACT = 1e-9  # but an index has no last bits: the next one is another row
ROWS, SPREAD = 4096, 2654435761  # of more rows so many, from all over: to read all would take a tenth of consolidating
PRODUCTS = 8  # two inputs may agree in one by chance, hardly in all; as many as a 64-bit number has bytes


class Uses(TorchFunctionMode):
    """`outside`: protected parameter → the function that multiplies it with an input outside its layer's forward.

    `read`: the names of the buffers that went into a result.

    A tensor computed from the model's own tensors alone (a transposed weight, a penalty, a mask) stands for those; every
    other tensor counts as input. So a norm or W·Wᵀ is no use, F.linear(h, W.T.float()) is one. A layer that is called
    too, with the same input and result, has remembered it: that is none either. (The result tells x·Wᵀ from x·W and from
    x·|W|.) Nor is what a part does that the user excluded.
    """

    def __init__(self, model: nn.Module, plan: Protection, selection: Selection) -> None:
        super().__init__()
        self._model, self._plan, self._selection = model, plan, selection
        self.read: set[str] = set()
        self._protected = {parameter for weight in plan.weights for parameter in weight.parameters}
        self._found: list[tuple[Tensor, str, list[_Likeness], list[_Likeness]]] = []  # with inputs and results
        self._given: dict[Tensor, list[_Likeness]] = {}  # what a weight's own layers got
        self._gave: dict[Tensor, list[_Likeness]] = {}  # and made of it
        self._open: Counter[Tensor] = Counter()  # whose layers are being called
        self._excused = 0  # depth in excluded modules
        self._origins: dict[
            int, tuple[Tensor, frozenset[Tensor]]
        ] = {}  # by id; the tensor is kept, so the id is its own
        self._buffers: dict[int, str] = {}

    def in_first_call(self, forward: Forward) -> Forward:
        """`forward`, watched the first time it is called: a model does the same with every batch."""
        watched = False

        def watching(model: nn.Module, batch: Any) -> object:
            nonlocal watched
            if watched:
                return forward(model, batch)
            watched = True
            with ExitStack() as stack:
                for hook in self._hooks():
                    stack.callback(hook.remove)
                self._origins = self._roots()
                stack.callback(self._origins.clear)
                stack.enter_context(self)
                return forward(model, batch)

        return watching

    @property
    def outside(self) -> dict[Tensor, str]:
        def known(parameter: Tensor, seen: list[_Likeness], among: dict[Tensor, list[_Likeness]]) -> bool:
            return all(any(x.is_near(y, of=parameter) for y in among.get(parameter, [])) for x in seen)

        return {
            parameter: name
            for parameter, name, inputs, results in self._found
            if not (known(parameter, inputs, self._given) and known(parameter, results, self._gave))
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").partition(".")[0]
        self._note(name, list(tensors_in((args, kwargs or {}))), list(tensors_in(result)))
        return result

    def _note(self, name: str, given: list[Tensor], results: list[Tensor]) -> None:
        written = bool(WRITES.fullmatch(name))
        if results or READS_A_NUMBER.fullmatch(name):
            self.read.update(self._buffers[id(x)] for x in given[int(written) :] if id(x) in self._buffers)
        origins = [self._origins[id(x)][1] for x in given if id(x) in self._origins]
        behind = frozenset(p for origin in origins for p in origin if not self._open[p])
        inputs = [x for x in given if id(x) not in self._origins]
        if inputs and behind and not self._excused and PRODUCT.fullmatch(name):
            got, made = ([_Likeness(x) for x in tensors] for tensors in (inputs, results))
            self._found += [(parameter, name, got, made) for parameter in behind]
        for x in [*results, *(given[:1] if written else [])]:
            if inputs:
                if not isinstance(x, nn.Parameter):
                    self._origins.pop(id(x), None)
            elif id(x) not in self._origins or written:
                # What is counted or compared no longer moves with the weight.
                self._origins[id(x)] = (x, behind if x.is_floating_point() else frozenset())

    def _roots(self) -> dict[int, tuple[Tensor, frozenset[Tensor]]]:
        buffers = [(clean(name), buffer) for name, buffer in self._model.named_buffers()]
        self._buffers = {id(buffer): name for name, buffer in buffers}
        own = [*self._model.parameters(), *(buffer for _, buffer in buffers)]
        return {id(x): (x, frozenset({x}) & self._protected) for x in own}

    def _hooks(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """A weight may be used where a rule says how, and where the user said that it need not be protected."""
        layers: dict[nn.Module, set[Tensor]] = {}
        for weight in self._plan.weights:
            for site in weight.sites:
                layers.setdefault(site.module, set()).update(weight.parameters)
        for raw, module in self._model.named_modules():
            name = clean(raw)
            own = module.named_parameters(prefix=name, recurse=False, remove_duplicate=False)
            unselected = {p for full, p in own if p in self._protected and full not in self._selection}
            excluded = bool(name) and self._selection.excludes(name)
            scripted = isinstance(module, torch.jit.ScriptModule)  # takes no hooks, and shows nothing of what it does
            if not scripted and (module in layers or unselected or excluded):
                yield from self._opening(module, layers.get(module, set()), unselected, excluded)

    def _opening(
        self, module: nn.Module, remembered: set[Tensor], unselected: set[Tensor], excluded: bool
    ) -> Iterator[torch.utils.hooks.RemovableHandle]:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._open.update(remembered | unselected)
            self._excused += excluded
            likenesses = [_Likeness(x) for x in tensors_in((args, kwargs))] if remembered else []
            for parameter in remembered:
                self._given.setdefault(parameter, []).extend(likenesses)

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if remembered and isinstance(output, Tensor):
                likenesses = [_Likeness(x) for x in _with_and_without_bias(module, output)]
                for parameter in remembered:
                    self._gave.setdefault(parameter, []).extend(likenesses)
            self._open.subtract(remembered | unselected)
            self._excused -= excluded

        # Before any other hook, so that what those do with the layer's weight counts as the layer's own.
        yield module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        yield module.register_forward_hook(after)


def _with_and_without_bias(layer: nn.Module, output: Tensor) -> list[Tensor]:
    """A function may leave the bias out; W·x is what it is."""
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if not (isinstance(weight, Tensor) and isinstance(bias, Tensor) and 2 <= weight.ndim <= output.ndim + 1):
        return [output]
    if bias.device != output.device or bias.numel() != output.shape[1 - weight.ndim]:
        return [output]  # a layer of the user's own, whose bias is something else, or an offloaded one
    return [output, output - bias.to(output.dtype).reshape(-1, *[1] * (weight.ndim - 2))]


def _scattered(rows: Tensor, dim: int) -> Tensor:
    """PRODUCTS numbers of variance 1 for each place along a dimension, as good as random and always the same.

    Not of torch's generator: the user's draws stay what they were, and vmap allows none. Not of numpy's: a host that draws
    millions holds up a GPU. The bytes of the place's number, mixed in the manner of splitmix64.
    """
    mixed = torch.arange(rows.shape[dim], device=rows.device) + (1 + dim << 40)
    for factor in (-7046029254386353131, -4658895280553007687, -7723592293110705685):
        mixed = (mixed ^ (mixed >> 29)) * factor
    places = 8 * torch.arange(PRODUCTS, device=rows.device)
    return ((mixed[:, None] >> places & 0xFF).to(rows.dtype) - 127.5) / 73.9


class _Likeness:
    """Enough of a tensor to know it again, without keeping it: random products uᵢᵀ·X·vᵢ, the same for every tensor.

    By how much they differ tells ‖X − Y‖, so the values count in their order: norm and sum alone took a permuted input, or
    the output of another LayerNorm, for the layer's own. The order is that of the dimensions, not that in memory.
    """

    def __init__(self, x: Tensor) -> None:
        plain = x.layout is torch.strided and not x.is_complex()
        self.shape, real = x.shape, x.is_floating_point()
        self.error = max(NEAR, 2 * torch.finfo(x.dtype).eps) if real else EXACT
        # Unseen by the mode: a layer's input may be another's weight, and these products are no use of it.
        with torch._C.DisableTorchFunction(), full_precision(x.device):
            rows = torch.atleast_2d(x.detach() if plain else torch.tensor(torch.nan)).flatten(0, -2)
            if len(rows) > ROWS:
                rows = rows[torch.arange(ROWS, device=rows.device) * SPREAD % len(rows)]
            rows = rows.to(torch.float32 if real else torch.float64)
            left, right = _scattered(rows, 0), _scattered(rows, 1)
            self.norm, self.products = torch.linalg.vector_norm(rows), (left * (rows @ right)).sum(0)

    def is_near(self, other: _Likeness, *, of: Tensor) -> bool:
        """As inputs of a weight. A matrix takes row by row, however those are numbered; a kernel needs its neighbours."""
        a, b = self.shape, other.shape
        if a != b and not (of.ndim <= 2 and a[-1:] == b[-1:] and a.numel() == b.numel()):
            return False
        distance = (self.products.cpu().double() - other.products.cpu().double()).square().mean().sqrt()
        return bool(distance <= max(self.error, other.error) * float(self.norm))
