"""Multi-head attention: query, key and value each see their own input, the output projection sees the joined heads."""

from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import LayerView, built_in_rule


@built_in_rule(nn.MultiheadAttention)
def attention(layer: nn.MultiheadAttention) -> list[LayerView]:
    output_rows = partial(_joined_heads, layer)
    output = LayerView(layer.out_proj.weight, output_rows, bias=layer.out_proj.bias, part="out_proj")
    if layer.in_proj_weight is not None:
        return [_packed_inputs(layer), output]
    weights = {"query": layer.q_proj_weight, "key": layer.k_proj_weight, "value": layer.v_proj_weight}
    return [*(_separate_input(layer, index, *item) for index, item in enumerate(weights.items())), output]


def _packed_inputs(layer: nn.MultiheadAttention) -> LayerView:
    """One weight with three groups. Queries may be fewer than keys: shorter groups are filled up with zeros."""

    def rows(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        parts = [x.reshape(-1, layer.embed_dim) for x in (query, key, value)]
        longest = max(len(part) for part in parts)
        return torch.stack([F.pad(part, (0, 0, 0, longest - len(part))) for part in parts])

    def row_mask(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        lengths = torch.tensor([[x.numel() // layer.embed_dim] for x in (query, key, value)], device=query.device)
        return torch.arange(int(lengths.max()), device=query.device) < lengths

    return LayerView(layer.in_proj_weight, rows, layer.in_proj_bias, groups=3, part="in_proj", row_mask=row_mask)


def _separate_input(layer: nn.MultiheadAttention, index: int, name: str, weight: Tensor) -> LayerView:
    def rows(*args: Any, **kwargs: Any) -> Tensor:
        x: Tensor = args[index] if index < len(args) else kwargs[name]
        return x.reshape(-1, weight.shape[1])

    share = (index * layer.embed_dim, (index + 1) * layer.embed_dim)
    return LayerView(weight, rows, bias=layer.in_proj_bias, bias_slice=share, part=f"{name}_proj")


def _joined_heads(
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Tensor:
    """The input of the output projection, which no hook sees: the output of a copy whose output projection is the identity."""
    twin = copy(layer)
    twin._modules, twin.training = {}, False
    identity = torch.eye(layer.embed_dim, dtype=query.dtype, device=query.device)
    vars(twin)["out_proj"] = SimpleNamespace(weight=identity, bias=None)
    # With need_weights, masks are added as in training, and not fused.
    causal = is_causal and attn_mask is not None
    output: Tensor = twin.forward(query, key, value, key_padding_mask, True, attn_mask, is_causal=causal)[0]
    output = output.transpose(0, 1) if layer.batch_first and output.ndim == 3 else output
    return output.reshape(-1, layer.embed_dim)
