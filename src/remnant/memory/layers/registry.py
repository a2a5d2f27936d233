"""LayerView, a layer's input as rows and its weight as a matrix (Eq. 1–3), and the rule that gives it for each type."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class LayerView:
    """One weight of a layer as a matrix, and the layer's input as the rows that multiply it.

    The rows X (N × inputs) and the matrix W (outputs × inputs) satisfy Y = X·Wᵀ + b, up to the shape of Y. All gradients of
    W then lie in the span of the rows (Eq. 3).

    Args:
        weight: The parameter.
        rows: Takes the arguments of the layer's forward and returns the rows, (N, inputs) or (groups, N, inputs), as one
            tensor or in chunks. For `one_hot` inputs it returns the indices.
        bias: The layer's bias, if it has one.
        bias_slice: The part (start, stop) of `bias` that belongs to this weight, if several weights share the bias.
        groups: The number of independent matrices, as in a grouped convolution.
        output_dim: The dimension of the weight (of one group's part of it) that counts the outputs.
        one_hot: Whether each row selects a single input, as in an embedding.
        part: A name that tells several views of one layer apart.
        row_mask: Takes the arguments of the layer's forward and returns a mask (groups, N), which is False for rows of zeros
            that only fill up a group with fewer rows than the others.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> view = LayerView(layer.weight, rows=lambda x: x.reshape(-1, 3), bias=layer.bias)
        >>> view.inputs, view.outputs
        (3, 2)
    """

    weight: Tensor
    rows: Callable[..., Tensor | Iterable[Tensor]] = field(repr=False)
    bias: Tensor | None = None
    bias_slice: tuple[int, int] | None = None
    groups: int = 1
    output_dim: int = 0
    one_hot: bool = False
    part: str = ""
    row_mask: Callable[..., Tensor] | None = field(default=None, repr=False)
    outputs: int = field(init=False)  # of each group
    inputs: int = field(init=False)  # of each group

    def __post_init__(self) -> None:
        outputs = self.weight.shape[self.output_dim] // (1 if self.output_dim else self.groups)
        object.__setattr__(self, "outputs", outputs)  # the class is frozen
        object.__setattr__(self, "inputs", self.weight.numel() // self.groups // outputs)

    @property
    def channels_last_order(self) -> Tensor:
        """The numbers of the matrix's inputs in the order that they have with the channels last."""
        _, *shape = self.weight.shape
        return torch.arange(prod(shape), device=self.weight.device).reshape(shape).movedim(0, -1).flatten()

    def matrix(self, tensor: Tensor, *, channels_last: bool = False) -> Tensor:
        """Returns a tensor shaped like the weight, or a shard of it, as (groups, outputs, inputs); if possible a view."""
        if channels_last:
            return tensor.movedim(1, -1).flatten(1)[None]
        grouped: Tensor = tensor.unflatten(0, (self.groups, len(tensor) // self.groups))
        return grouped.movedim(1 + self.output_dim, 1).flatten(2)

    def tensor(self, matrix: Tensor, *, channels_last: bool = False) -> Tensor:
        """Returns a (groups, outputs, inputs) matrix in the weight's shape: the inverse of `matrix`."""
        if channels_last:
            _, channels, *kernel = self.weight.shape
            return matrix.reshape(-1, *kernel, channels).movedim(-1, 1)
        _, *shape = self.weight.shape
        if self.output_dim:
            del shape[self.output_dim - 1]
            shape.insert(0, matrix.shape[2] // prod(shape))  # a shard may have fewer than the weight
        unflat = matrix.reshape(self.groups, matrix.shape[1], *shape)
        return unflat.movedim(1, 1 + self.output_dim).flatten(0, 1)


Rule = Callable[[Any], LayerView | Iterable[LayerView]]
_rules: dict[type | str, Rule] = {}


def register_layer(kind: type[nn.Module] | str, rule: Rule) -> None:
    """Adds a layer type to those that GPM can protect.

    A subclass uses the rule of its nearest base class. If it has its own `forward`, the rule gets the arguments that this
    passes to the base's `forward`. `consolidate` tests whether the rule describes what the layer computes.

    Args:
        kind: The type, or its dotted name ("package.module.Class") to avoid importing it.
        rule: A function that takes the layer and returns a `LayerView`, or several.

    Raises:
        TypeError: If `kind` is not a module type or name, or `rule` is not a function.

    Example:
        >>> class Scaled(nn.Linear):
        ...     def forward(self, x):
        ...         return 2 * super().forward(x)
        >>> register_layer(Scaled, lambda layer: LayerView(layer.weight, lambda x: x.reshape(-1, x.shape[-1]), layer.bias))
    """
    if not (isinstance(kind, str) or (isinstance(kind, type) and issubclass(kind, nn.Module))):
        raise TypeError(f"register_layer takes an nn.Module type or its dotted name, not {kind!r}.")
    if not callable(rule):
        raise TypeError(f"The rule for {kind!r} must be a function layer -> LayerView, not {rule!r}.")
    _rules[kind] = rule


def built_in_rule(*kinds: type[nn.Module] | str) -> Callable[[Rule], Rule]:
    """Decorates a rule of this package."""

    def register(rule: Rule) -> Rule:
        for kind in kinds:
            register_layer(kind, rule)
        return rule

    return register


def views_of(layer: nn.Module) -> list[LayerView] | None:
    """Returns a layer's views by the rule for its type, or None if there is no rule.

    Example:
        >>> (view,) = views_of(nn.Linear(3, 2))
        >>> view.inputs, view.outputs
        (3, 2)
    """
    rule = rule_of(layer)
    if rule is None:
        return None
    buffers = [(buffer, buffer.detach().clone()) for buffer in layer.buffers()]
    with torch.no_grad():
        result = rule(layer)
        for buffer, value in buffers:
            if not torch.equal(buffer, value):  # reading a spectrally normalised weight changes them
                buffer.copy_(value)
    views = list(result) if isinstance(result, Iterable) else [result]
    if not all(isinstance(view, LayerView) for view in views):
        raise TypeError(f"The rule for {type(layer).__name__} must return one or more LayerViews, not {result!r}.")
    return views


def rule_of(layer: nn.Module) -> Rule | None:
    """Returns the rule for a layer's type, or for its nearest base."""
    keys = (key for kind in type(layer).__mro__ for key in (kind, f"{kind.__module__}.{kind.__qualname__}"))
    return next((_rules[key] for key in keys if key in _rules), None)


def described_forward(layer: nn.Module) -> type | None:
    """Returns the class whose forward the layer's rule describes, if the layer has another forward of its own."""
    kinds = [k for k in type(layer).__mro__ if k in _rules or f"{k.__module__}.{k.__qualname__}" in _rules]
    owner = next(base for base in (*kinds, nn.Module)[0].__mro__ if "forward" in vars(base))
    return owner if "forward" in vars(layer) or type(layer).forward is not vars(owner)["forward"] else None


def is_norm(layer: nn.Module) -> bool:
    """Tells whether a module is a normalisation layer: one of torch's, or a class named …Norm with only vectors to learn.

    Example:
        >>> is_norm(nn.LayerNorm(4)), is_norm(nn.Linear(4, 4))
        (True, False)
    """
    types = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    own = list(layer.parameters(recurse=False))
    named = type(layer).__name__.rstrip("123d").endswith("Norm") and all(p.ndim <= 1 for p in own)
    return isinstance(layer, types) or (named and bool(own))
