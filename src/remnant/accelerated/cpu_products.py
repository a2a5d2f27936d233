"""Matrix products of wide layers on a CPU.

PyTorch computes float32 products with MKL, which runs at half speed on processors of other makers. Its other library, oneDNN,
is used only if products may round to bfloat16. Most processors have no such products, and oneDNN then rounds to float32.
"""

from functools import cache

import torch
from torch import nn

WIDE = 256 * 256  # weights of a layer; below this, oneDNN's overhead of 8 µs per product costs more than it gains


def use_fast_products(network: nn.Module) -> None:
    """Lets oneDNN compute products if the network has wide layers and no precision is lost."""
    if any(p.numel() >= WIDE for p in network.parameters()) and _medium_is_exact():
        torch.set_float32_matmul_precision("medium")


@cache
def _medium_is_exact() -> bool:
    """Whether a product keeps bits that bfloat16 would lose."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        factor = torch.full((256, 256), 1 + 2**-12)
        return bool((factor @ torch.eye(256) == factor).all())
    finally:
        torch.set_float32_matmul_precision(before)
