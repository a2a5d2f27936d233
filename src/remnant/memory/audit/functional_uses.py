"""Finds weights that a forward pass multiplies outside their layers, and the buffers that it reads.

Hooks see only the layers' inputs. They miss `F.linear(h, self.embedding.weight)`, and a running average that a module
subtracts. Torch's function mode sees both.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from ..discovery import Protection, clean
from ..patterns import Selection
from ..precision import full_precision
from ..record.batches import tensors_in

# Functions that multiply a weight and an input, as layers do.
PRODUCT = re.compile(
    r"(bi)?linear|(__r?)?matmul(__)?|b?mm|mv|add(b?mm|mv)|baddbmm|einsum|tensordot|inner|v?dot|cdist|cosine_similarity|"
    r"conv(_transpose)?[123]d|convolution|embedding(_bag)?|__getitem__|index_select|gather|take(_along_dim)?|"
    r"multi_head_attention_forward|scaled_dot_product_attention"
)
WRITES = re.compile(r"__(setitem|set|iadd|isub|imul|itruediv|ipow|iand|ior|ixor)__|.*[^_]_")
READS_A_NUMBER = re.compile(r"item|tolist|numpy|__(float|int|bool|index|array)__")
NEAR = 1e-3  # relative difference of two tensors that count as the same input
EXACT = 1e-9  # for indices, where the next number is another row
ROWS, SPREAD = 4096, 2654435761  # a fingerprint reads that many rows, spread over the tensor: all would take too long
PRODUCTS = 8  # numbers in a fingerprint; at most the 8 bytes of a 64-bit number


class FunctionalUses(TorchFunctionMode):
    """Records the uses of protected parameters outside their layers' forward in `outside`, and of buffers in `buffers_read`.

    A tensor computed from the model's own tensors alone (a transposed weight, a penalty, a mask) stands for those, and
    every other tensor counts as an input. So a norm or W·Wᵀ is not a use, and F.linear(h, W.T.float()) is one. Two cases
    are not counted: a layer that is also called with the same input and gives the same result (which tells x·Wᵀ from x·W),
    since it has remembered that input; and modules that the user excluded.
    """

    def __init__(self, model: nn.Module, protection: Protection, selection: Selection) -> None:
        super().__init__()
        self._model, self._protection, self._selection = model, protection, selection
        self.watched = False
        self.buffers_read: set[str] = set()
        self._protected = {parameter for weight in protection.weights for parameter in weight.parameters}
        self._found: list[tuple[Tensor, str, list[_Fingerprint], list[_Fingerprint]]] = []  # with inputs and results
        self._layer_inputs: dict[Tensor, list[_Fingerprint]] = {}
        self._layer_outputs: dict[Tensor, list[_Fingerprint]] = {}
        self._allowed: Counter[Tensor] = Counter()  # parameters whose layers are being called
        self._excluded_depth = 0
        # Tensor id → the tensor, kept so that its id stays its own, and the parameters that it was computed from.
        self._origins: dict[int, tuple[Tensor, frozenset[Tensor]]] = {}
        self._buffers: dict[int, str] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches one forward pass."""
        self.watched = True
        buffers = [(clean(name), buffer) for name, buffer in self._model.named_buffers()]
        self._buffers = {id(buffer): name for name, buffer in buffers}
        own = [*self._model.parameters(), *(buffer for _, buffer in buffers)]
        self._origins = {id(x): (x, frozenset({x}) & self._protected) for x in own}
        with ExitStack() as stack:
            for hook in self._hooks():
                stack.callback(hook.remove)
            stack.callback(self._origins.clear)
            stack.enter_context(self)
            yield

    @property
    def outside(self) -> dict[Tensor, str]:
        """Parameter → the name of the function that multiplies it."""

        def known(parameter: Tensor, tensors: list[_Fingerprint], among: dict[Tensor, list[_Fingerprint]]) -> bool:
            return all(any(x.is_near(y, parameter) for y in among.get(parameter, [])) for x in tensors)

        return {
            parameter: name
            for parameter, name, inputs, results in self._found
            if not (known(parameter, inputs, self._layer_inputs) and known(parameter, results, self._layer_outputs))
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").partition(".")[0]
        self._note_call(name, list(tensors_in((args, kwargs or {}))), list(tensors_in(result)))
        return result

    def _note_call(self, name: str, arguments: list[Tensor], results: list[Tensor]) -> None:
        writes = bool(WRITES.fullmatch(name))
        if results or READS_A_NUMBER.fullmatch(name):
            self.buffers_read.update(self._buffers[id(x)] for x in arguments[int(writes) :] if id(x) in self._buffers)
        origins = [self._origins[id(x)][1] for x in arguments if id(x) in self._origins]
        parameters = frozenset(p for origin in origins for p in origin if not self._allowed[p])
        inputs = [x for x in arguments if id(x) not in self._origins]
        if inputs and parameters and not self._excluded_depth and PRODUCT.fullmatch(name):
            before, after = ([_Fingerprint(x) for x in tensors] for tensors in (inputs, results))
            self._found += [(parameter, name, before, after) for parameter in parameters]
        for x in [*results, *(arguments[:1] if writes else [])]:
            if inputs:
                if not isinstance(x, nn.Parameter):
                    self._origins.pop(id(x), None)
            elif id(x) not in self._origins or writes:
                # The result of a count or comparison no longer moves with the weight.
                self._origins[id(x)] = (x, parameters if x.is_floating_point() else frozenset())

    def _hooks(self) -> Iterator[RemovableHandle]:
        """Allows uses inside the layers that have a rule, and in modules that the user left unprotected."""
        layers: dict[nn.Module, set[Tensor]] = {}
        for weight in self._protection.weights:
            for site in weight.sites:
                layers.setdefault(site.module, set()).update(weight.parameters)
        for raw, module in self._model.named_modules():
            name = clean(raw)
            own = module.named_parameters(prefix=name, recurse=False, remove_duplicate=False)
            unselected = {p for full, p in own if p in self._protected and full not in self._selection}
            excluded = bool(name) and self._selection.excludes(name)
            scripted = isinstance(module, torch.jit.ScriptModule)  # it takes no hooks, and the mode cannot look inside
            if not scripted and (module in layers or unselected or excluded):
                yield from self._hooks_on(module, layers.get(module, set()), unselected, excluded)

    def _hooks_on(
        self, module: nn.Module, remembered: set[Tensor], unselected: set[Tensor], excluded: bool
    ) -> Iterator[RemovableHandle]:
        def note(prints: dict[Tensor, list[_Fingerprint]], tensors: Any) -> None:
            found = [_Fingerprint(x) for x in tensors] if remembered else []
            for parameter in remembered:
                prints.setdefault(parameter, []).extend(found)

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._allowed.update(remembered | unselected)
            self._excluded_depth += excluded
            note(self._layer_inputs, tensors_in((args, kwargs)))

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if remembered and isinstance(output, Tensor):
                note(self._layer_outputs, _with_and_without_bias(module, output))
            self._allowed.subtract(remembered | unselected)
            self._excluded_depth -= excluded

        # The first hook of all, so that uses of the weight in other hooks count as the layer's own.
        yield module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        yield module.register_forward_hook(after)


def _with_and_without_bias(layer: nn.Module, output: Tensor) -> list[Tensor]:
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if not (isinstance(weight, Tensor) and isinstance(bias, Tensor) and 2 <= weight.ndim <= output.ndim + 1):
        return [output]
    if bias.device != output.device or bias.numel() != output.shape[1 - weight.ndim]:
        return [output]  # an offloaded layer, or a user's own with another kind of bias
    return [output, output - bias.to(output.dtype).reshape(-1, *[1] * (weight.ndim - 2))]


def _hash_numbers(rows: Tensor, dim: int) -> Tensor:
    """PRODUCTS numbers of variance 1 for each index along a dimension, pseudo-random and always the same.

    Torch's generator would change the user's draws, and numpy's would make a GPU wait. These are the bytes of the index,
    mixed as in splitmix64.
    """
    mixed = torch.arange(rows.shape[dim], device=rows.device) + (1 + dim << 40)
    for factor in (-7046029254386353131, -4658895280553007687, -7723592293110705685):
        mixed = (mixed ^ (mixed >> 29)) * factor
    shifts = 8 * torch.arange(PRODUCTS, device=rows.device)
    return ((mixed[:, None] >> shifts & 0xFF).to(rows.dtype) - 127.5) / 73.9


class _Fingerprint:
    """Random products uᵢᵀ·X·vᵢ of a tensor, the same for every tensor: how far two of them differ estimates ‖X − Y‖."""

    def __init__(self, x: Tensor) -> None:
        plain = x.layout is torch.strided and not x.is_complex()
        self.shape, real = x.shape, x.is_floating_point()
        self.error = max(NEAR, 2 * torch.finfo(x.dtype).eps) if real else EXACT
        # Hidden from the function mode: x may be another layer's weight, and these products are not a use of it.
        with torch._C.DisableTorchFunction(), full_precision(x.device):
            rows = torch.atleast_2d(x.detach() if plain else torch.tensor(torch.nan)).flatten(0, -2)
            if len(rows) > ROWS:
                rows = rows[torch.arange(ROWS, device=rows.device) * SPREAD % len(rows)]
            rows = rows.to(torch.float32 if real else torch.float64)
            left, right = _hash_numbers(rows, 0), _hash_numbers(rows, 1)
            self.norm, self.products = torch.linalg.vector_norm(rows), (left * (rows @ right)).sum(0)

    def is_near(self, other: "_Fingerprint", parameter: Tensor) -> bool:
        """Whether both are the same input of a parameter. A matrix takes rows in any shape; a kernel needs neighbours."""
        a, b = self.shape, other.shape
        if a != b and not (parameter.ndim <= 2 and a[-1:] == b[-1:] and a.numel() == b.numel()):
            return False
        distance = (self.products.cpu().double() - other.products.cpu().double()).square().mean().sqrt()
        return bool(distance <= max(self.error, other.error) * float(self.norm))
