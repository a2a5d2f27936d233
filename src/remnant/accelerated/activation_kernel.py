"""Triton kernels for ReLU, dropout, 2×2 max-pooling and the norm of rows, forward and backward. Channels are last.

For each window, or each value, the forward pass stores one byte: which value was passed on (0 to 3), or NONE.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE: tl.constexpr = tl.constexpr(4)


@triton.jit
def shown(x, chance, keep):
    """max(x, 0) if the random number keeps it, else 0. NaN stays NaN."""
    return tl.where((chance < keep) & (x > 0), x, tl.where(x == x, 0.0, x))


@triton.jit
def pooled_forward(x_ptr, y_ptr, kept_ptr, seed_ptr, size, C, H, W, OH, OW, keep, BLOCK: tl.constexpr):
    out = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = out < size
    channel, j, i, n = out % C, out // C % OW, out // (C * OW) % OH, out // (C * OW * OH)
    corner = x_ptr + ((n * H + 2 * i) * W + 2 * j) * C + channel
    r0, r1, r2, r3 = tl.rand4x(tl.load(seed_ptr), out)
    best = shown(tl.load(corner, mask=there, other=0.0), r0, keep)
    which = tl.zeros((BLOCK,), tl.int32)
    for k in tl.static_range(1, 4):
        at = corner + ((k // 2) * W + k % 2) * C
        value = shown(tl.load(at, mask=there, other=0.0), r1 if k == 1 else (r2 if k == 2 else r3), keep)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        which = tl.where(better, k, which)
    tl.store(y_ptr + out, best / keep, mask=there)
    tl.store(kept_ptr + out, tl.where(best > 0, which, NONE).to(tl.uint8), mask=there)


@triton.jit
def pooled_backward(dy_ptr, kept_ptr, dx_ptr, size, C, H, W, OH, OW, keep, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    channel, j, i, n = at % C, at // C % W, at // (C * W) % H, at // (C * W * H)
    window = ((n * OH + i // 2) * OW + j // 2) * C + channel
    inside = there & (i // 2 < OH) & (j // 2 < OW)  # an odd last row or column belongs to no window
    mine = inside & (tl.load(kept_ptr + window, mask=inside, other=NONE) == (i % 2) * 2 + j % 2)
    tl.store(dx_ptr + at, tl.load(dy_ptr + window, mask=mine, other=0.0) / keep, mask=there)


@triton.jit
def plain_forward(x_ptr, y_ptr, kept_ptr, seed_ptr, size, keep, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    y = shown(tl.load(x_ptr + at, mask=there, other=0.0), tl.rand(tl.load(seed_ptr), at), keep)
    tl.store(y_ptr + at, y / keep, mask=there)
    tl.store(kept_ptr + at, tl.where(y > 0, 0, NONE).to(tl.uint8), mask=there)


@triton.jit
def plain_backward(dy_ptr, kept_ptr, dx_ptr, size, keep, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    mine = there & (tl.load(kept_ptr + at, mask=there, other=NONE) != NONE)
    tl.store(dx_ptr + at, tl.load(dy_ptr + at, mask=mine, other=0.0) / keep, mask=there)


@triton.jit(do_not_specialize=["rows"])
def normalised_forward(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, scale_ptr, seed_ptr, rows, features, eps, keep,
    R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = dropout(max(w·(x − mean)·scale + b, 0)) with scale = 1/√(variance + ε) and the batch's statistics."""
    feature, at, there, one = _columns(rows, features, R, BLOCK)
    x = tl.load(x_ptr + at, mask=there, other=0.0)
    mean = tl.sum(x, axis=0) / rows
    away = tl.where(there, x - mean[None, :], 0.0)
    scale = 1 / tl.sqrt(tl.sum(away * away, axis=0) / rows + eps)
    weight = tl.load(weight_ptr + feature, mask=one, other=0.0)
    bias = tl.load(bias_ptr + feature, mask=one, other=0.0)
    normed = away * (scale * weight)[None, :] + bias[None, :]
    y = shown(normed, tl.rand(tl.load(seed_ptr), at), keep) / keep
    tl.store(y_ptr + at, y, mask=there)
    tl.store(mean_ptr + feature, mean, mask=one)
    tl.store(scale_ptr + feature, scale, mask=one)


@triton.jit(do_not_specialize=["rows"])
def normalised_backward(
    dy_ptr, x_ptr, y_ptr, weight_ptr, mean_ptr, scale_ptr, dx_ptr, dweight_ptr, dbias_ptr, rows, features, keep,
    R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """With g = ∂L/∂normed and n = (x − mean)·scale: ∂b = Σg, ∂w = Σg·n, ∂x = w·scale·(g − ∂b/rows − n·∂w/rows)."""
    feature, at, there, one = _columns(rows, features, R, BLOCK)
    mean = tl.load(mean_ptr + feature, mask=one, other=0.0)
    scale = tl.load(scale_ptr + feature, mask=one, other=0.0)
    weight = tl.load(weight_ptr + feature, mask=one, other=0.0)
    went_on = there & (tl.load(y_ptr + at, mask=there, other=0.0) > 0)
    g = tl.load(dy_ptr + at, mask=went_on, other=0.0) / keep
    n = (tl.load(x_ptr + at, mask=there, other=0.0) - mean[None, :]) * scale[None, :]
    dbias = tl.sum(g, axis=0)
    dweight = tl.sum(g * n, axis=0)  # g is zero in missing rows
    dx = (weight * scale)[None, :] * (g - (dbias / rows)[None, :] - n * (dweight / rows)[None, :])
    tl.store(dx_ptr + at, dx, mask=there)
    tl.store(dweight_ptr + feature, dweight, mask=one)
    tl.store(dbias_ptr + feature, dbias, mask=one)


@triton.jit
def _columns(rows, features, R: tl.constexpr, BLOCK: tl.constexpr):
    """This block's features, the offsets of their values in rows × features, and the masks of existing ones."""
    feature = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, R)
    one = feature < features
    at = row[:, None] * features + feature[None, :]
    return feature, at, (row < rows)[:, None] & one[None, :], one
