"""Multi-head attention: query, key and value each see their own input, the output projection sees the joined heads."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import LayerView, built_in_rule


@built_in_rule(nn.MultiheadAttention)
def attention(layer: nn.MultiheadAttention) -> list[LayerView]:
    def output_rows(*args: Any, **kwargs: Any) -> Tensor:
        return _joined_heads(layer, *args, **kwargs).reshape(-1, layer.embed_dim)

    output = LayerView(layer.out_proj.weight, output_rows, bias=layer.out_proj.bias, part="out_proj")
    if layer.in_proj_weight is not None:
        return [_packed_inputs(layer), output]
    weights = {"query": layer.q_proj_weight, "key": layer.k_proj_weight, "value": layer.v_proj_weight}
    inputs = [_separate_input(layer, index, name, weight) for index, (name, weight) in enumerate(weights.items())]
    return [*inputs, output]


def _packed_inputs(layer: nn.MultiheadAttention) -> LayerView:
    """One weight with three groups. Queries may be fewer than keys: shorter groups are filled up with zeros."""

    def rows(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        parts = [x.reshape(-1, layer.embed_dim) for x in (query, key, value)]
        longest = max(len(part) for part in parts)
        return torch.stack([F.pad(part, (0, 0, 0, longest - len(part))) for part in parts])

    def real(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        lengths = torch.tensor([[x.numel() // layer.embed_dim] for x in (query, key, value)], device=query.device)
        return torch.arange(int(lengths.max()), device=query.device) < lengths

    return LayerView(layer.in_proj_weight, rows, layer.in_proj_bias, groups=3, part="in_proj", real=real)


def _separate_input(layer: nn.MultiheadAttention, index: int, name: str, weight: Tensor) -> LayerView:
    def rows(*args: Any, **kwargs: Any) -> Tensor:
        x: Tensor = args[index] if index < len(args) else kwargs[name]
        return x.reshape(-1, weight.shape[1])

    share = (index * layer.embed_dim, (index + 1) * layer.embed_dim)
    return LayerView(weight, rows, bias=layer.in_proj_bias, bias_part=share, part=f"{name}_proj")


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
    """The input of the output projection, which no hook sees: the same attention, with the identity as that projection."""
    if layer.batch_first and query.ndim == 3:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    identity = torch.eye(layer.embed_dim, dtype=query.dtype, device=query.device)
    output, _ = F.multi_head_attention_forward(
        query,
        key,
        value,
        layer.embed_dim,
        layer.num_heads,
        layer.in_proj_weight,
        layer.in_proj_bias,
        layer.bias_k,
        layer.bias_v,
        layer.add_zero_attn,
        0.0,
        identity,
        None,
        training=False,
        key_padding_mask=key_padding_mask,
        need_weights=True,  # as in training, where masks are added rather than fused
        attn_mask=attn_mask,
        use_separate_proj_weight=layer.in_proj_weight is None,
        q_proj_weight=layer.q_proj_weight,
        k_proj_weight=layer.k_proj_weight,
        v_proj_weight=layer.v_proj_weight,
        is_causal=is_causal and attn_mask is not None,
    )
    return output
