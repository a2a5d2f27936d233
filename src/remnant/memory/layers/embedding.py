"""Embeddings: the input is one-hot, so the memory is a set of indices."""

from torch import nn

from .registry import LayerView, built_in_rule


@built_in_rule(nn.Embedding)
def embedding(layer: nn.Embedding) -> LayerView | list[LayerView]:
    if layer.max_norm is not None:
        return []  # its forward rewrites the weight, so no constraint on steps could protect it
    return LayerView(layer.weight, lambda input: input, output_dim=1, one_hot=True)
