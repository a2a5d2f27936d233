"""Triton kernels for a norm by the batch, ReLU, dropout and 2×2 max-pooling, forward and backward. Channels are last.

For each window, or each value, the forward pass stores one byte: which value was passed on (0 to 3), or NONE.

A norm before pooling takes two passes each way, because the values of a channel are spread over the whole batch: the first
pass sums them in parts, and every program of the second adds up the parts, always in the same order. It reads the parts from
the L2 cache while it waits for its own values. A third kernel in between would cost a launch, which often takes as long as a
pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE: tl.constexpr = tl.constexpr(4)
# Not specialised on these sizes, so that all layers share one compiled kernel. Only for C does divisibility by 16 matter.
SIZES = ["rows", "share", "parts", "windows", "cells", "H", "W"]


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


@triton.jit(do_not_specialize=SIZES)
def value_parts(x_ptr, parts_ptr, rows, share, C, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """For `share` rows, per channel: the mean and Σ(x − mean)².

    Both come from sums of d = x − x₀, where x₀ is the first of these rows. Σd² − (Σd)²/share loses no digits if the mean is
    far from zero, because (x₀ − mean)² ≤ share · variance for any x₀.
    """
    channel, one, part = _block(C, BLOCK)
    end = tl.minimum((part + 1) * share, rows)
    first = tl.load(x_ptr + part * share * C + channel, mask=one, other=0.0)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(part * share, end, ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row < end)[:, None] & one[None, :]
        x = tl.load(x_ptr + (row * C)[:, None] + channel[None, :], mask=there, other=0.0)
        d = tl.where(there, x - first[None, :], 0.0)
        total += d
        squares += d * d
    count = (end - part * share).to(tl.float32)
    mean = tl.sum(total, axis=0) / count  # of d
    away = tl.sum(squares, axis=0) - mean * mean * count
    _store_parts(parts_ptr, first + mean, away, channel, one, part, C, PARTS)


@triton.jit(do_not_specialize=SIZES)
def norm_pool_forward(
    x_ptr, weight_ptr, bias_ptr, parts_ptr, seed_ptr, y_ptr, normal_ptr, kept_ptr, mean_ptr, scale_ptr,
    windows, rows, share, parts, C, H, W, eps, keep,
    PARTS: tl.constexpr, WINDOWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = the maximum of dropout(max(w·n + b, 0)) over a window, n = (x − mean)·scale, scale = 1/√(variance + ε).

    The n of the maximum is stored too, or ∞ if nothing was passed on. The backward pass needs it for Σg·n, and reading it
    costs a quarter of reading x again.
    """
    channel, one, tile = _block(C, BLOCK)
    window = tile * WINDOWS + tl.arange(0, WINDOWS)
    there = (window < windows)[:, None] & one[None, :]
    j, i, n = window % (W // 2), window // (W // 2) % (H // 2), window // ((W // 2) * (H // 2))
    corner = x_ptr + (((n * H + 2 * i) * W + 2 * j) * C)[:, None] + channel[None, :]
    values = (
        tl.load(corner, mask=there, other=0.0),
        tl.load(corner + C, mask=there, other=0.0),
        tl.load(corner + W * C, mask=there, other=0.0),
        tl.load(corner + W * C + C, mask=there, other=0.0),
    )
    mean, scale = _statistics(parts_ptr, channel, one, rows, share, parts, C, eps, PARTS)
    weight = tl.load(weight_ptr + channel, mask=one, other=0.0)
    bias = tl.load(bias_ptr + channel, mask=one, other=0.0)
    out = (window * C)[:, None] + channel[None, :]
    chances = tl.rand4x(tl.load(seed_ptr), out)
    best = tl.full((WINDOWS, BLOCK), -1.0, tl.float32)
    normal = tl.zeros((WINDOWS, BLOCK), tl.float32)
    which = tl.zeros((WINDOWS, BLOCK), tl.int32)
    for k in tl.static_range(4):
        mine = (values[k] - mean[None, :]) * scale[None, :]
        value = shown(mine * weight[None, :] + bias[None, :], chances[k], keep)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        normal = tl.where(better, mine, normal)
        which = tl.where(better, k, which)
    tl.store(y_ptr + out, best / keep, mask=there)
    tl.store(normal_ptr + out, tl.where(best == 0, float("inf"), normal), mask=there)
    tl.store(kept_ptr + out, tl.where(best > 0, which, NONE).to(tl.uint8), mask=there)
    tl.store(mean_ptr + channel, mean, mask=one & (tile == 0))
    tl.store(scale_ptr + channel, scale, mask=one & (tile == 0))


@triton.jit(do_not_specialize=SIZES)
def gradient_parts(
    dy_ptr, normal_ptr, parts_ptr, windows, share, C, keep,
    PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For `share` windows, per channel: Σg and Σg·n, where g = ∂L/∂(w·n + b) is zero except at the value passed on."""
    channel, one, part = _block(C, BLOCK)
    end = tl.minimum((part + 1) * share, windows)
    gradients = tl.zeros((ROWS, BLOCK), tl.float32)
    products = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(part * share, end, ROWS):
        window = start + tl.arange(0, ROWS)
        there = (window < end)[:, None] & one[None, :]
        at = (window * C)[:, None] + channel[None, :]
        dy = tl.load(dy_ptr + at, mask=there, other=0.0)
        normal = tl.load(normal_ptr + at, mask=there, other=0.0)
        g = dy / keep
        gradients += tl.where(normal == float("inf"), 0.0, g)
        products += tl.where(normal == float("inf"), 0.0, g * normal)
    _store_parts(parts_ptr, tl.sum(gradients, axis=0), tl.sum(products, axis=0), channel, one, part, C, PARTS)


@triton.jit(do_not_specialize=SIZES)
def norm_pool_backward(
    dy_ptr, x_ptr, kept_ptr, weight_ptr, mean_ptr, scale_ptr, parts_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    cells, rows, parts, C, H, W, keep,
    PARTS: tl.constexpr, WINDOWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """∂b = Σg, ∂w = Σg·n and, for every value, ∂x = w·scale·(g − ∂b/rows − n·∂w/rows).

    A program takes cells of 2×2. These are the windows and also the cells of an odd last row or column, where g is zero
    but ∂x is not.
    """
    channel, one, tile = _block(C, BLOCK)
    cell = tile * WINDOWS + tl.arange(0, WINDOWS)
    across, down = (W + 1) // 2, (H + 1) // 2
    j, i, n = cell % across, cell // across % down, cell // (across * down)
    here = (cell < cells)[:, None] & one[None, :]
    pooled = here & ((i < H // 2) & (j < W // 2))[:, None]
    window = (((n * (H // 2) + i) * (W // 2) + j) * C)[:, None] + channel[None, :]
    kept = tl.load(kept_ptr + window, mask=pooled, other=NONE)
    dy = tl.load(dy_ptr + window, mask=pooled, other=0.0)
    corner = (((n * H + 2 * i) * W + 2 * j) * C)[:, None] + channel[None, :]
    right, below = (2 * j + 1 < W)[:, None], (2 * i + 1 < H)[:, None]
    places = (corner, corner + C, corner + W * C, corner + W * C + C)
    inside = (here, here & right, here & below, here & right & below)
    values = (  # all loads come before the first store, because no load may overtake a store
        tl.load(x_ptr + places[0], mask=inside[0], other=0.0),
        tl.load(x_ptr + places[1], mask=inside[1], other=0.0),
        tl.load(x_ptr + places[2], mask=inside[2], other=0.0),
        tl.load(x_ptr + places[3], mask=inside[3], other=0.0),
    )
    at, there, _ = _all_parts(channel, one, parts, C, PARTS)
    dbias = tl.sum(tl.load(parts_ptr + at, mask=there, other=0.0), axis=0)
    dweight = tl.sum(tl.load(parts_ptr + PARTS * C + at, mask=there, other=0.0), axis=0)
    mean = tl.load(mean_ptr + channel, mask=one, other=0.0)
    scale = tl.load(scale_ptr + channel, mask=one, other=0.0)
    weight = tl.load(weight_ptr + channel, mask=one, other=0.0)
    g = dy / keep
    for k in tl.static_range(4):
        normal = (values[k] - mean[None, :]) * scale[None, :]
        rest = (dbias / rows)[None, :] + normal * (dweight / rows)[None, :]
        dx = (weight * scale)[None, :] * (tl.where(kept == k, g, 0.0) - rest)
        tl.store(dx_ptr + places[k], dx, mask=inside[k])
    tl.store(dbias_ptr + channel, dbias, mask=one & (tile == 0))
    tl.store(dweight_ptr + channel, dweight, mask=one & (tile == 0))


@triton.jit
def _block(C, BLOCK: tl.constexpr):
    """This program's channels, their mask, and its number among the programs of the same channels."""
    blocks = tl.cdiv(C, BLOCK)
    channel = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    return channel, channel < C, tl.program_id(0) // blocks


@triton.jit
def _store_parts(parts_ptr, first, second, channel, one, part, C, PARTS: tl.constexpr):
    tl.store(parts_ptr + part * C + channel, first, mask=one)
    tl.store(parts_ptr + (PARTS + part) * C + channel, second, mask=one)


@triton.jit
def _all_parts(channel, one, parts, C, PARTS: tl.constexpr):
    """The offsets of these channels' parts, their mask, and their numbers."""
    part = tl.arange(0, PARTS)
    return (part * C)[:, None] + channel[None, :], (part < parts)[:, None] & one[None, :], part


@triton.jit
def _statistics(parts_ptr, channel, one, rows, share, parts, C, eps, PARTS: tl.constexpr):
    """Mean and 1/√(variance + ε) of all rows, from the parts' means and squares (Chan, Golub and LeVeque)."""
    at, there, part = _all_parts(channel, one, parts, C, PARTS)
    means = tl.load(parts_ptr + at, mask=there, other=0.0)
    squares = tl.load(parts_ptr + PARTS * C + at, mask=there, other=0.0)
    count = tl.where(part < parts, tl.minimum(rows - part * share, share), 0).to(tl.float32)[:, None]
    mean = tl.sum(means * count, axis=0) / rows
    away = means - mean[None, :]
    variance = tl.sum(squares + count * away * away, axis=0) / rows
    return mean, 1 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps)  # rounding, if all values are equal
