"""A layer of the user's own, registered with a rule, is protected like any other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from attached import train_attached
from torch import Tensor, nn

from remnant import GPM, ConsolidationError, LayerView, UnsupportedError, register_layer
from remnant.memory.layers import registry as layers


@pytest.fixture
def own_rules() -> Iterator[None]:
    """Removes the rules that a test registers."""
    before = dict(layers._rules)
    yield
    layers._rules.clear()
    layers._rules.update(before)


class Scaled(nn.Module):
    """y = W·(2x), a layer that the library does not know."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return (2 * x) @ self.matrix.mT


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize("kind", [Scaled, f"{__name__}.Scaled"], ids=["type", "name"])
def test_a_registered_layer_is_protected_like_any_other(kind: type[nn.Module] | str) -> None:
    model = nn.Sequential(Scaled(6, 4))
    with pytest.raises(UnsupportedError, match=r"register_layer\(Scaled, rule\)"):
        GPM(model)
    register_layer(kind, lambda layer: LayerView(layer.matrix, lambda x: (2 * x).reshape(-1, 6)))
    memory = GPM(model, threshold=1.0)
    old = torch.randn(3, 6)
    assert memory.consolidate(old) == {"0": 3}
    before = model(old).detach()
    train_attached(memory, lambda: (model(torch.randn(9, 6)) - 1).square().mean())
    torch.testing.assert_close(model(old), before, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("own_rules")
def test_mistakes_in_registering_a_layer_are_refused() -> None:
    with pytest.raises(TypeError, match=r"nn\.Module type"):
        register_layer(Scaled(2, 2), lambda layer: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"nn\.Module type"):
        register_layer(dict, lambda layer: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function layer -> LayerView"):
        register_layer(Scaled, "rule")  # type: ignore[arg-type]
    model = nn.Sequential(Scaled(6, 4))
    register_layer(Scaled, lambda layer: None)
    with pytest.raises(TypeError, match=r"rule for Scaled.*LayerView"):
        GPM(model)
    register_layer(Scaled, lambda layer: LayerView(layer.matrix, lambda x: x[:, :5]))
    with pytest.raises(ConsolidationError, match=r"'0'.*\(2, 5\)|'0'.*\(1, 2, 5\)"):
        GPM(model).consolidate(torch.randn(2, 6))


@pytest.mark.usefixtures("own_rules")
def test_two_views_of_one_layer_need_two_names() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(4, 6)) for _ in "ab")

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.a.mT).sigmoid() * (x @ self.b.mT)

    def unnamed(layer: Gated) -> list[LayerView]:
        return [LayerView(weight, lambda x: x) for weight in (layer.a, layer.b)]

    def named(layer: Gated) -> list[LayerView]:
        return [LayerView(weight, lambda x: x, part=part) for part, weight in [("a", layer.a), ("b", layer.b)]]

    register_layer(Gated, unnamed)
    with pytest.raises(ValueError, match="part="):
        GPM(nn.Sequential(Gated()))
    register_layer(Gated, named)
    assert set(GPM(nn.Sequential(Gated())).subspaces) == {"0.a", "0.b"}
