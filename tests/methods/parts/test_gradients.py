"""Gradients vectorised over batches, of a network that lies channels-last as on a GPU.

There cuDNN's batch norm copies the gradient of its output into the layout of its input, for which vmap has no rule. Here a
batch norm that copies its input so stands in for it: what fails there fails here, with the same message.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._prims_common import suggest_memory_format

from remnant.data import Split
from remnant.methods import GEM
from remnant.methods.ewc import fisher_diagonal
from remnant.methods.parts.gradients import default_layout
from remnant.models import Network, build

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "alexnet": ((3, 20, 20), {"width": 8, "dropout": (0.0, 0.0)}),
    "resnet18": ((3, 16, 16), {"width": 2}),  # with 1×1 filters, of which `contiguous` leaves the strides alone
}


@pytest.fixture
def like_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = F.batch_norm

    def batch_norm(x: Tensor, *rest: Any, **named: Any) -> Tensor:
        return plain(x.clone(memory_format=suggest_memory_format(x)), *rest, **named)

    monkeypatch.setattr(F, "batch_norm", batch_norm)


def network(kind: str, norm: str, layout: torch.memory_format) -> Network:
    shape, options = NETWORKS[kind]
    made = build(kind, input_shape=shape, classes=(3, 3, 3), seed=3, norm=norm, **options).double()
    return made.to(memory_format=layout)  # type: ignore[call-overload,no-any-return]


def data(net: Network, layout: torch.memory_format, seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(40, *net.input_shape, generator=g, dtype=torch.float64).contiguous(memory_format=layout)
    return Split.of(x, torch.arange(40) % 3)


LAYOUTS = (torch.contiguous_format, torch.channels_last)


@pytest.mark.usefixtures("like_cudnn")
@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_fisher_is_the_same_channels_last(kind: str, norm: str, batch: int) -> None:
    found = []
    for layout in LAYOUTS:
        net = network(kind, norm, layout)
        torch.manual_seed(5)  # the order of examples
        parameters = {name: p for name, p in net.named_parameters() if not name.startswith("heads.")}
        found.append(fisher_diagonal(net, parameters, data(net, layout), 1, batch=batch))
    assert all(torch.allclose(a, b, rtol=1e-7, atol=1e-14) for a, b in zip(*found, strict=True))
    assert all(f.max() > 0 for f in found[1])


@pytest.mark.usefixtures("like_cudnn")
@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_gems_gradients_of_past_tasks_are_the_same_channels_last(kind: str, norm: str) -> None:
    found = []
    for layout in LAYOUTS:
        torch.manual_seed(5)  # what is remembered
        method = GEM(network(kind, norm, layout), lr=0.1, memory=24)
        for task in range(2):
            method.start(task)
            method.finish(task, data(method.network, layout, task))
        method.start(2)
        found.append(method.past_gradients())
    assert torch.allclose(*found, rtol=1e-7, atol=1e-10)
    assert found[1].abs().max() > 0


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (4, 3, 1, 1), (4, 1, 5, 5), (1, 3, 1, 1), (1, 1, 1, 1)])
def test_the_default_layout_is_what_a_new_tensor_has(shape: tuple[int, ...]) -> None:
    """Also where a dimension of one leaves strides open."""
    tensor = torch.randn(shape).to(memory_format=torch.channels_last)
    laid_out = default_layout(tensor)
    assert laid_out.stride() == torch.empty(shape).stride()
    assert suggest_memory_format(laid_out) == torch.contiguous_format
    assert torch.equal(laid_out, tensor)
