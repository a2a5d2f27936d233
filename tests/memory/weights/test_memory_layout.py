"""A network in channels-last memory format is protected like any other, and without copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attached import train_attached
from torch import Tensor, nn

from remnant import GPM
from remnant.memory import StepProjector, views_of
from remnant.memory.subspaces.projection import Projection
from remnant.memory.weights.protected import ProtectedWeight

IMAGES = ((nn.Conv2d, torch.channels_last), (nn.Conv3d, torch.channels_last_3d))


def network(kind: type[nn.Module], bias: bool) -> nn.Sequential:
    torch.manual_seed(3)
    up = nn.ConvTranspose2d if kind is nn.Conv2d else nn.ConvTranspose3d
    layers = kind(3, 6, 2, bias=bias), nn.ReLU(), kind(6, 4, 1, bias=bias), kind(4, 4, 2, groups=2, bias=bias)
    return nn.Sequential(*layers, up(4, 3, 2, bias=bias), nn.Flatten()).double()


def examples(kind: type[nn.Module], seed: int) -> Tensor:
    """In few directions, so that there is room left."""
    generator = torch.Generator().manual_seed(seed)
    size = 5 if kind is nn.Conv2d else 4
    drawn = torch.randn(8, 3, *[1] * (2 if kind is nn.Conv2d else 3), dtype=torch.float64, generator=generator)
    return drawn * torch.randn(3, *[size] * (drawn.ndim - 2), dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(("kind", "layout"), IMAGES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_it_ends_where_the_same_network_laid_out_otherwise_ends(
    kind: type[nn.Module],
    layout: torch.memory_format,
    bias: bool,
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    ends = []
    first, second = examples(kind, 1), examples(kind, 2)
    for chosen in (torch.contiguous_format, layout):
        net = network(kind, bias).to(memory_format=chosen)  # type: ignore[call-overload]
        memory = GPM(net, threshold=0.9)
        added = memory.consolidate(first)
        assert min(added.values()) > 0
        train_attached(memory, lambda net=net: (net(second) - 1).square().mean(), optimizer=optimizer)  # type: ignore[misc]
        assert memory.verify().worst < 1e-10
        ends.append([p.detach().clone() for p in net.parameters()])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("kind", "layout"), IMAGES)
def test_gradients_held_apart_come_out_laid_out_as_the_weight_is(
    kind: type[nn.Module], layout: torch.memory_format
) -> None:
    net = network(kind, bias=False)
    memory = GPM(net, threshold=0.9)
    memory.consolidate(examples(kind, 1))
    gradients: dict[Tensor, Tensor] = {p: torch.randn_like(p) for p in net.parameters()}
    projector = StepProjector(memory)
    expected = projector.project(dict(gradients))
    net.to(memory_format=layout)  # type: ignore[call-overload]
    laid_out = {p: gradient.contiguous(memory_format=layout) for p, gradient in gradients.items()}
    for weight, found in projector.project(laid_out).items():
        torch.testing.assert_close(found, expected[weight])
    assert laid_out[net[0].weight].stride() == net[0].weight.stride() != gradients[net[0].weight].stride()


@pytest.mark.parametrize(("kind", "layout"), IMAGES)
def test_a_matrix_is_a_view_in_the_order_of_memory(kind: type[nn.Module], layout: torch.memory_format) -> None:
    layer = kind(3, 6, 2, bias=False).to(memory_format=layout)  # type: ignore[call-overload]
    (view,) = views_of(layer) or []
    assert ProtectedWeight("layer", view, sites=[], biases=[])._channels_last
    gradient = torch.randn_like(view.weight)
    matrix = view.matrix(gradient, channels_last=True)
    assert matrix.data_ptr() == gradient.data_ptr()
    assert torch.equal(view.tensor(matrix, channels_last=True), gradient)
    assert torch.equal(view.matrix(gradient)[:, :, view.channels_last_order], matrix)


@pytest.mark.parametrize(("kind", "layout"), IMAGES)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_what_lies_so_is_changed_where_it_is(
    kind: type[nn.Module],
    layout: torch.memory_format,
    optimizer: Callable[..., torch.optim.Optimizer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A projection changes gradients and weights in place, without copies."""
    net = nn.Sequential(kind(3, 6, 2, bias=False), nn.Flatten()).to(memory_format=layout)  # type: ignore[call-overload]
    memory = GPM(net, threshold=0.9)
    x = examples(kind, 1).float()
    memory.consolidate(x)
    changed: list[int] = []
    for name in ("remove_", "restore_"):
        plain = getattr(Projection, name)

        def noted(self: Projection, stack: Tensor, *rest: Tensor, plain: Callable[..., Tensor] = plain) -> Tensor:
            changed.append(stack.data_ptr())
            return plain(self, stack, *rest)

        monkeypatch.setattr(Projection, name, noted)
    chosen = memory.attach(optimizer(net.parameters(), lr=0.1))
    net(x).square().mean().backward()
    chosen.step()
    weight = net[0].weight
    assert weight.grad is not None
    assert set(changed) <= {weight.data_ptr(), weight.grad.data_ptr()}
    assert weight.grad.data_ptr() in changed


def test_a_large_basis_and_its_projection_share_their_memory() -> None:
    net = nn.Linear(1100, 300, bias=False)
    memory = GPM(net, threshold=0.9)
    memory.consolidate(torch.randn(20, 1100))
    before = memory.subspaces["model"].basis.clone()  # type: ignore[union-attr]
    train_attached(memory, lambda: net(torch.randn(20, 1100)).square().mean(), steps=3)
    subspace, (projection,) = memory.subspaces["model"], set(memory._protection.weights[0]._projections.values())
    assert subspace.basis.data_ptr() == projection.left.data_ptr()  # type: ignore[union-attr]
    assert torch.equal(subspace.basis, before)  # type: ignore[union-attr]
    again = GPM(net, threshold=0.9)
    again.load_state_dict(memory.state_dict())
    assert torch.equal(again.subspaces["model"].basis, before)  # type: ignore[union-attr]
