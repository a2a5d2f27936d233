"""Convolutions: one row per output position, the patch that the filter sees there (Sec. 4.2, Eq. 4)."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import gcd, prod
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import LayerView, built_in_rule

CHUNK = 2**22  # numbers unfolded at a time, so that the patches of a whole batch never exist together

Numbers = tuple[int, ...]
Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
ConvTranspose = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


@built_in_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def conv(layer: Conv) -> LayerView:
    """One subspace per group."""
    return LayerView(layer.weight, partial(_conv_rows, layer), layer.bias, groups=layer.groups)


@built_in_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def conv_transpose(layer: ConvTranspose) -> LayerView:
    return LayerView(layer.weight, partial(_transpose_rows, layer), layer.bias, groups=layer.groups, output_dim=1)


def _conv_rows(layer: Conv, input: Tensor) -> Iterator[Tensor]:
    """Yields rows (groups, N, C/groups·k…) in chunks."""
    dims = len(layer.kernel_size)
    x = input if input.ndim == dims + 2 else input.unsqueeze(0)
    if layer.padding == "valid":
        sides = [0] * (2 * dims)
    elif layer.padding == "same":
        spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        sides = [side for span in reversed(spans) for side in (span // 2, span - span // 2)]
    else:
        sides = [p for p in reversed(cast(Numbers, layer.padding)) for _ in (0, 1)]
    if any(sides):
        x = F.pad(x, sides, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    yield from _rows(_windows(x, layer.kernel_size, layer.stride, layer.dilation), layer.groups, dims)


def _transpose_rows(layer: ConvTranspose, input: Tensor, output_size: Sequence[int] | None = None) -> Iterator[Tensor]:
    """A transposed convolution is the convolution of the zero-stuffed input with the flipped filter.

    Outputs that lie a multiple of the stride apart see the same few weights, so the rows of a sample come in that order.
    """
    dims = len(layer.kernel_size)
    x = input if input.ndim == dims + 2 else input.unsqueeze(0)
    geometry = list(zip(layer.kernel_size, layer.stride, layer.dilation, cast(Numbers, layer.padding), strict=True))
    extra = list(layer.output_padding)
    stuffed = x.new_zeros(*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], layer.stride, strict=True)))
    if output_size is not None:
        smallest = [n - 2 * p + d * (k - 1) for n, (k, _, d, p) in zip(stuffed.shape[2:], geometry, strict=True)]
        extra = [int(want) - small for want, small in zip(list(output_size)[-dims:], smallest, strict=True)]
    stuffed[tuple(slice(None, None, s) for s in (1, 1, *layer.stride))] = x
    sides: list[int] = []
    for (k, _, d, p), more in zip(reversed(geometry), reversed(extra), strict=True):
        sides += [d * (k - 1) - p, d * (k - 1) - p + more]
    windows = _windows(F.pad(stuffed, sides), layer.kernel_size, (1,) * dims, layer.dilation)
    columns = torch.arange(x.shape[1] // layer.groups * prod(layer.kernel_size), device=x.device)
    columns = columns.reshape(-1, *layer.kernel_size)
    phases = []
    for phase in product(*(range(min(s, n)) for s, n in zip(layer.stride, windows.shape[2:], strict=False))):
        seen, flipped = [], []
        for start, (k, s, d, p) in zip(phase, geometry, strict=True):
            taps = [tap for tap in range(k) if (start + tap * d - (d * (k - 1) - p)) % s == 0]
            step = s // gcd(s, d)
            seen.append(slice(taps[0], None, step) if taps else slice(0))
            flipped.append(slice(k - 1 - taps[-1], k - taps[0], step) if taps else slice(0))
        places = [slice(start, None, s) for start, s in zip(phase, layer.stride, strict=True)]
        # It is cheaper to flip these numbers of the columns than the rows.
        own = columns[(slice(None), *flipped)].flip(tuple(range(1, dims + 1))).flatten()
        phases.append(((..., *places, *seen), own))
    for sample in windows.split(1):
        for part, own in phases:
            for rows in _rows(sample[part], layer.groups, dims, width=columns.numel()):
                yield rows.new_zeros(*rows.shape[:2], columns.numel()).index_copy_(2, own, rows)


def _windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """All patches as a view (B, C, out…, k…)."""
    for dim, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        x = x.unfold(dim, d * (k - 1) + 1, s)[..., ::d]
    return x


def _rows(windows: Tensor, groups: int, dims: int, *, width: int | None = None) -> Iterator[Tensor]:
    """Copies the patches of a few samples, or of a few lines of one sample, at a time, for rows of that width."""
    channels = windows.shape[1]
    size = channels // groups * prod(windows.shape[2 + dims :])
    per_line = groups * (width or size) * prod(windows.shape[3 : 2 + dims])
    lines = max(1, CHUNK // max(1, per_line))
    samples = max(1, lines // windows.shape[2])
    grouped = windows.unflatten(1, (groups, channels // groups))  # (B, G, C/G, out…, k…)
    order = (1, 0, *range(3, 3 + dims), 2, *range(3 + dims, 3 + 2 * dims))  # (G, B, out…, C/G, k…)
    for part in grouped.permute(order).split(samples, dim=1):
        for some in part.split(lines, dim=2):
            yield some.reshape(groups, prod(some.shape[1 : 2 + dims]), size)
