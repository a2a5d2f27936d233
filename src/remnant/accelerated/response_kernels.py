"""Triton kernels for local response normalisation, y = x·d^−¾ with d = 1 + s·Σx² over nearby channels. Channels are last.

Each way is one pass over memory: the nearby channels of a value lie beside it, so they come from the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def response_forward(x_ptr, y_ptr, size, C, s, BEFORE: tl.constexpr, AFTER: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    x = tl.load(x_ptr + at, mask=there, other=0.0)
    tl.store(y_ptr + at, x * _factor(_divisor(x_ptr, at, at % C, there, C, s, BEFORE, AFTER)), mask=there)


@triton.jit
def response_backward(
    dy_ptr, x_ptr, dx_ptr, size, C, s, BEFORE: tl.constexpr, AFTER: tl.constexpr, BLOCK: tl.constexpr
):
    """∂x = ∂y·d^−¾ − 3/2·s·x·Σ(∂y·x·d^−7⁄4), summed over the channels in whose d this x is."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    channel = at % C
    x = tl.load(x_ptr + at, mask=there, other=0.0)
    dx = tl.load(dy_ptr + at, mask=there, other=0.0) * _factor(_divisor(x_ptr, at, channel, there, C, s, BEFORE, AFTER))
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(BEFORE + AFTER + 1):
        beside = channel + (k - AFTER)
        inside = there & (beside >= 0) & (beside < C)
        d = _divisor(x_ptr, at + (k - AFTER), beside, inside, C, s, BEFORE, AFTER)
        product = tl.load(dy_ptr + at + (k - AFTER), mask=inside, other=0.0)
        product *= tl.load(x_ptr + at + (k - AFTER), mask=inside, other=0.0)
        total += product * _factor(d) / d
    tl.store(dx_ptr + at, dx - 1.5 * s * x * total, mask=there)


@triton.jit
def _divisor(x_ptr, at, channel, there, C, s, BEFORE: tl.constexpr, AFTER: tl.constexpr):
    """d for the values at these places: the squares of BEFORE channels before, the value's own, and AFTER channels after."""
    total = tl.zeros_like(at).to(tl.float32)
    for k in tl.static_range(BEFORE + AFTER + 1):
        beside = channel + (k - BEFORE)
        x = tl.load(x_ptr + at + (k - BEFORE), mask=there & (beside >= 0) & (beside < C), other=0.0)
        total += x * x
    return 1 + s * total


@triton.jit
def _factor(d):
    """d^−¾."""
    return 1 / tl.sqrt(d * tl.sqrt(d))
