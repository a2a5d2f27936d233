"""Linear layers, whose rows are the inputs themselves (Eq. 3), and embeddings, whose inputs are one-hot."""

from typing import Any

from torch import nn

from .registry import LayerView, built_in_rule


@built_in_rule(nn.Linear)
def linear(layer: nn.Linear) -> LayerView:
    return LayerView(layer.weight, lambda input: input.reshape(-1, input.shape[-1]), bias=layer.bias)


@built_in_rule("transformers.pytorch_utils.Conv1D")
def transposed_linear(layer: Any) -> LayerView:
    """GPT-2's linear layer, whose weight is stored as inputs × outputs."""
    return LayerView(layer.weight, lambda x: x.reshape(-1, x.shape[-1]), bias=layer.bias, output_dim=1)


@built_in_rule(nn.Embedding)
def embedding(layer: nn.Embedding) -> LayerView | list[LayerView]:
    """The memory of one-hot inputs is a set of indices."""
    if layer.max_norm is not None:
        return []  # its forward rewrites the weight, so no constraint on steps could protect it
    return LayerView(layer.weight, lambda input: input, output_dim=1, one_hot=True)
