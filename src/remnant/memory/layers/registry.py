"""How each layer type sees its input as rows, its weight as a matrix (Eq. 1–3). A rule a type; `register_layer` adds more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .heads import heads_output
from .patches import Conv, ConvTranspose, conv_rows, conv_transpose_rows


@dataclass(frozen=True, eq=False)
class LayerView:
    """One weight of a layer as (groups ×) outputs × inputs matrices, and the layer's input as rows to multiply them.

    `rows` takes what the layer's forward takes and gives rows of shape (N, inputs), or (groups, N, inputs), whole or
    in chunks; for `one_hot` inputs, the indices. Each output is a row times the weight's matrix, plus the bias.
    Groups with fewer rows than others are filled up with zeros, and `real` tells (groups, N) which rows are none of those.
    """

    weight: Tensor
    rows: Callable[..., Tensor | Iterable[Tensor]] = field(repr=False)
    bias: Tensor | None = None
    bias_part: tuple[int, int] | None = None  # where several weights share a bias: this weight's piece of it
    groups: int = 1
    output_dim: int = 0  # which dimension of the weight (a group's part of it) counts the outputs
    one_hot: bool = False
    part: str = ""  # tells several views of one module apart
    real: Callable[..., Tensor] | None = field(default=None, repr=False)

    @property
    def outputs(self) -> int:
        return self.split_shape[1 + self.output_dim]

    @property
    def inputs(self) -> int:
        return prod(self.split_shape) // self.groups // self.outputs

    @property
    def split_shape(self) -> tuple[int, ...]:
        shape = tuple(self.weight.shape)
        return (self.groups, shape[0] // self.groups, *shape[1:])

    @property
    def input_dims(self) -> set[int]:
        return set(range(self.weight.ndim)) - {self.output_dim}

    @property
    def channels_last(self) -> bool:
        """Whether the weight lies in memory with its channels last, so that only in that order its matrix is a view."""
        weight = self.weight
        whole = weight.ndim > 2 and self.groups == 1 and self.output_dim == 0
        return whole and not weight.is_contiguous() and weight.movedim(1, -1).is_contiguous()

    @property
    def last_order(self) -> Tensor:
        """The inputs of the matrix, numbered, in the order they have with the channels last."""
        _, *shape = self.weight.shape
        return torch.arange(prod(shape), device=self.weight.device).reshape(shape).movedim(0, -1).flatten()

    def matrix(self, tensor: Tensor, *, channels_last: bool = False) -> Tensor:
        """A tensor shaped like the weight as (groups, outputs, inputs); a view where that is possible."""
        if channels_last:
            return tensor.movedim(1, -1).flatten(1)[None]
        grouped: Tensor = tensor.unflatten(0, (self.groups, -1))
        return grouped.movedim(1 + self.output_dim, 1).flatten(2)

    def tensor(self, matrix: Tensor, *, channels_last: bool = False) -> Tensor:
        """The way back."""
        if channels_last:
            outputs, channels, *kernel = self.weight.shape
            return matrix.reshape(outputs, *kernel, channels).movedim(-1, 1)
        split = list(self.split_shape)
        outputs = split.pop(1 + self.output_dim)
        unflat = matrix.reshape(self.groups, outputs, *split[1:])
        return unflat.movedim(1, 1 + self.output_dim).flatten(0, 1)


Rule = Callable[[Any], LayerView | Iterable[LayerView]]
_rules: dict[type | str, Rule] = {}


def register_layer(kind: type[nn.Module] | str, rule: Rule) -> None:
    """Teaches GPM a layer type: `rule(layer)` gives its `LayerView` (or several).

    A dotted name ("package.module.Class") registers a type without importing it. A subclass follows its nearest base,
    unless it has a `forward` of its own.
    """
    if not (isinstance(kind, str) or (isinstance(kind, type) and issubclass(kind, nn.Module))):
        raise TypeError(f"register_layer takes an nn.Module type or its dotted name, not {kind!r}.")
    if not callable(rule):
        raise TypeError(f"The rule for {kind!r} must be a function layer -> LayerView, not {rule!r}.")
    _rules[kind] = rule


def views_of(layer: nn.Module) -> list[LayerView] | None:
    """The views of a layer by its type's rule; None where there is no rule."""
    rule = _rule_of(layer)
    if rule is None:
        return None
    given = rule(layer)
    views = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(view, LayerView) for view in views):
        raise TypeError(f"The rule for {type(layer).__name__} gave {given!r}: it must give a LayerView, or several.")
    return views


def has_rule(layer: nn.Module) -> bool:
    return _rule_of(layer) is not None


def has_own_rule(layer: nn.Module) -> bool:
    """Whether a user registered the layer's rule."""
    rule = _rule_of(layer)
    return rule is not None and rule not in _built_in


def _rule_of(layer: nn.Module) -> Rule | None:
    for kind in type(layer).__mro__:
        rule = _rules.get(kind) or _rules.get(f"{kind.__module__}.{kind.__qualname__}")
        if rule is not None:
            # A forward of its own may do to the input what the base's rule knows nothing of (shift, pad, normalise).
            return rule if type(layer).forward is getattr(kind, "forward", None) else None
    return None


def is_norm(layer: nn.Module) -> bool:
    """Normalisation layers, the built-in ones and those that are called so and have only vectors to learn."""
    known = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    own = list(layer.parameters(recurse=False))
    named = type(layer).__name__.rstrip("123d").endswith("Norm") and all(p.ndim <= 1 for p in own)
    return isinstance(layer, known) or (named and bool(own))


def rule(*kinds: type[nn.Module] | str) -> Callable[[Rule], Rule]:
    def registered(function: Rule) -> Rule:
        for kind in kinds:
            register_layer(kind, function)
        return function

    return registered


@rule(nn.Linear)
def linear(layer: nn.Linear) -> LayerView:
    return LayerView(layer.weight, lambda input: input.reshape(-1, input.shape[-1]), bias=layer.bias)


@rule("transformers.pytorch_utils.Conv1D")
def transposed_linear(layer: nn.Module) -> LayerView:
    """GPT-2's linear layer, whose weight is stored inputs × outputs."""
    weight, bias = cast(Tensor, layer.weight), cast(Tensor, layer.bias)
    return LayerView(weight, lambda x: x.reshape(-1, x.shape[-1]), bias=bias, output_dim=1)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def conv(layer: Conv) -> LayerView:
    """One row per output position, one subspace per group (Eq. 4)."""
    return LayerView(layer.weight, lambda input: conv_rows(layer, input), bias=layer.bias, groups=layer.groups)


@rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def conv_transpose(layer: ConvTranspose) -> LayerView:
    def rows(input: Tensor, output_size: list[int] | None = None) -> Iterable[Tensor]:
        return conv_transpose_rows(layer, input, output_size)

    return LayerView(layer.weight, rows, bias=layer.bias, groups=layer.groups, output_dim=1)


@rule(nn.Embedding)
def embedding(layer: nn.Embedding) -> LayerView | list[LayerView]:
    """Its input is one-hot, so what it remembers is a set of indices."""
    if layer.max_norm is not None:
        return []  # its forward rewrites the weight: no constraint on steps could hold it
    return LayerView(layer.weight, lambda input: input, output_dim=1, one_hot=True)


@rule(nn.MultiheadAttention)
def attention(layer: nn.MultiheadAttention) -> list[LayerView]:
    """Query, key and value each see their own input; the output projection sees the heads' results."""

    def output_rows(*args: Any, **kwargs: Any) -> Tensor:
        return heads_output(layer, *args, **kwargs).reshape(-1, layer.embed_dim)

    views = [LayerView(layer.out_proj.weight, output_rows, bias=layer.out_proj.bias, part="out_proj")]
    if layer.in_proj_weight is not None:

        def rows(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
            parts = [x.reshape(-1, layer.embed_dim) for x in (query, key, value)]
            longest = max(len(part) for part in parts)
            return torch.stack([F.pad(part, (0, 0, 0, longest - len(part))) for part in parts])

        def real(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
            lengths = torch.tensor([[x.numel() // layer.embed_dim] for x in (query, key, value)], device=query.device)
            return torch.arange(int(lengths.max()), device=query.device) < lengths

        packed = LayerView(layer.in_proj_weight, rows, layer.in_proj_bias, groups=3, part="in_proj", real=real)
        return [packed, *views]

    def of(name: str, weight: Tensor, place: int) -> LayerView:
        def rows(*args: Any, **kwargs: Any) -> Tensor:
            x: Tensor = args[place] if place < len(args) else kwargs[name]
            return x.reshape(-1, weight.shape[1])

        share = (place * layer.embed_dim, (place + 1) * layer.embed_dim)
        return LayerView(weight, rows, bias=layer.in_proj_bias, bias_part=share, part=f"{name}_proj")

    separate = [("query", layer.q_proj_weight), ("key", layer.k_proj_weight), ("value", layer.v_proj_weight)]
    return [*(of(name, weight, place) for place, (name, weight) in enumerate(separate)), *views]


_built_in = set(_rules.values())
