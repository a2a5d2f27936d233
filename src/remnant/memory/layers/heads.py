"""What the output projection of `nn.MultiheadAttention` sees: computed inside one function, out of a hook's reach."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def heads_output(
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
    """The joined heads before the output projection: the same attention, with the identity in the projection's place."""
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
