"""A fourth channel of zeros changes no result, and the layer is a convolution to everyone else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remnant.memory.layers import has_rule, views_of
from remnant.models.image_conv import ImageConv


def pair(channels: int, device: str) -> tuple[ImageConv, nn.Conv2d]:
    torch.manual_seed(0)
    ours, plain = ImageConv(channels, 8, 3, stride=2, padding=1), nn.Conv2d(channels, 8, 3, stride=2, padding=1)
    plain.load_state_dict(ours.state_dict())
    return ours.to(device), plain.to(device)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_it_is_the_same_convolution(channels: int, device: str) -> None:
    torch.backends.cudnn.allow_tf32 = False
    ours, plain = pair(channels, device)
    x = torch.randn(5, channels, 9, 9, device=device, requires_grad=True)
    results = []
    for layer in (ours, plain):
        y = layer(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, layer.weight, layer.bias])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_gpm_knows_it() -> None:
    ours, plain = pair(3, "cpu")
    assert has_rule(ours)
    views = views_of(ours)
    assert views
    x = torch.randn(2, 3, 9, 9)
    rows = torch.cat(list(views[0].rows(x)))
    expected = plain(x).detach().permute(0, 2, 3, 1).reshape(-1, 8)
    found = rows.reshape(-1, 27) @ ours.weight.detach().flatten(1).T + ours.bias.detach()
    torch.testing.assert_close(found.sort(0).values, expected.sort(0).values)
