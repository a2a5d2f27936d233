"""A user's rule that does not describe its layer is refused, and one that does is accepted, whatever the layer does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attached import train_attached
from torch import Tensor, nn

from remnant import GPM, ConsolidationError, LayerView, register_layer
from remnant.memory.layers import registry as layers

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full", "ignore:The forward pass reads buffers")

View = Callable[["Own"], LayerView]
Compute = Callable[["Own", Tensor], Tensor]


class Own(nn.Module):
    """A square kernel, a bias, and a forward that the test chooses."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.kernel, self.offset = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))
        self.register_buffer("calls", torch.zeros(()))
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.compute(self, x)


@pytest.fixture(autouse=True)
def own_rules() -> Iterator[None]:
    before = dict(layers._rules)
    yield
    layers._rules.clear()
    layers._rules.update(before)


def rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def plain(layer: Own) -> LayerView:
    return LayerView(layer.kernel, rows, bias=layer.offset)


def transposed(layer: Own) -> LayerView:
    return LayerView(layer.kernel, rows, bias=layer.offset, output_dim=1)


def without_bias(layer: Own) -> LayerView:
    return LayerView(layer.kernel, rows)


RIGHT: dict[str, tuple[Compute, View]] = {
    "linear": (lambda m, x: F.linear(x, m.kernel, m.offset), plain),
    "inputs × outputs": (lambda m, x: x @ m.kernel + m.offset, transposed),
    "activation": (lambda m, x: (x @ m.kernel + m.offset).relu().square(), transposed),
    "saturated": (lambda m, x: (50 * (x @ m.kernel + m.offset)).sigmoid(), transposed),
    "residual": (lambda m, x: x + F.linear(x, m.kernel, m.offset), plain),
    "dropout": (lambda m, x: F.dropout(F.linear(x, m.kernel, m.offset), 0.5, m.training), plain),
    "noise": (lambda m, x: F.linear(x, m.kernel, m.offset) + torch.randn(6), plain),
    "in place": (lambda m, x: x.copy_(F.linear(x.clone(), m.kernel, m.offset)), plain),
    "reduced": (lambda m, x: F.linear(x, m.kernel, m.offset).sum(-1), plain),
    "counted": (lambda m, x: F.linear(x, m.kernel, m.offset) * m.calls, plain),
    "scaled": (
        lambda m, x: F.linear(2 * x, m.kernel, m.offset),
        lambda m: LayerView(m.kernel, lambda x: rows(2 * x), bias=m.offset),
    ),
    "grouped": (
        lambda m, x: torch.cat([F.linear(x, half) for half in m.kernel.chunk(2)], -1),
        lambda m: LayerView(m.kernel, lambda x: rows(x).expand(2, -1, -1), groups=2),
    ),
    "one-hot": (
        lambda m, x: F.embedding(x[..., 0].long() % 6, m.kernel),
        lambda m: LayerView(m.kernel, lambda x: x[..., 0].long() % 6, output_dim=1, one_hot=True),
    ),
}
WRONG: dict[str, tuple[Compute, View]] = {
    "transposed": (lambda m, x: x @ m.kernel, without_bias),
    "transposed with bias": (lambda m, x: x @ m.kernel + m.offset, plain),
    "transposed the other way": (lambda m, x: F.linear(x, m.kernel, m.offset), transposed),
    "rows of something else": (lambda m, x: F.linear(x.flip(-1), m.kernel, m.offset), plain),
    "bias scaled": (lambda m, x: F.linear(x, m.kernel, 3 * m.offset), plain),
    "weight normalised": (lambda m, x: F.linear(x, m.kernel / m.kernel.norm()), without_bias),
    "both ways": (lambda m, x: F.linear(F.linear(x, m.kernel), m.kernel.T), without_bias),
    "one-hot rows": (
        lambda m, x: F.embedding(x[..., 0].long() % 6, m.kernel),
        lambda m: LayerView(m.kernel, lambda x: x[..., 0].long() % 6, one_hot=True),
    ),
}


def consolidated(compute: Compute, view: View, x: Tensor, **settings: Any) -> tuple[GPM, Tensor]:
    register_layer(Own, view)
    model = nn.Sequential(Own(compute)).to(x.dtype)
    if view(model[0]).bias is None:
        del model[0].offset
    memory = GPM(model, threshold=0.9, **settings)
    state, chance = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    try:
        memory.consolidate(x)
    finally:
        assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items() if "calls" not in name)
        assert torch.equal(torch.get_rng_state(), chance) or "randn" in compute.__code__.co_names
    return memory, x


SHAPES = [(20, 6), (2, 6), (20, 4, 6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("compute", "view"), RIGHT.values(), ids=RIGHT)
def test_a_right_rule_is_not_suspected(
    compute: Compute, view: View, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    memory, _ = consolidated(compute, view, torch.randn(shape, dtype=dtype) * 3)
    assert len(memory) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("compute", "view"), WRONG.values(), ids=WRONG)
def test_a_wrong_rule_is_an_error_that_names_the_layer(compute: Compute, view: View, shape: tuple[int, ...]) -> None:
    told = r"rule does not cover: '0' \(Own.*Nothing was remembered"
    with pytest.raises(ConsolidationError, match=told):
        consolidated(compute, view, torch.randn(shape) * 3)


def test_freeze_holds_the_layer_and_free_lets_it_go() -> None:
    compute, view = WRONG["transposed with bias"]
    memory, x = consolidated(compute, view, torch.randn(20, 6), unsupported="freeze")
    before = memory._model(x).detach()
    train_attached(memory, lambda: (memory._model(torch.randn(9, 6)) - 1).square().mean())
    assert torch.equal(memory._model(x), before)
    memory, _ = consolidated(compute, view, torch.randn(20, 6), unsupported="free")
    assert len(memory) == 1


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Linear(6, 4), torch.randn(9, 6)),
        (nn.Conv2d(4, 6, 3, padding=1, stride=2, groups=2), torch.randn(3, 4, 5, 5)),
        (nn.Conv2d(8, 6, 3, padding_mode="reflect", padding=1), torch.randn(3, 8, 5, 5)),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), torch.randn(3, 4, 5)),
        (nn.Embedding(30, 4), torch.randint(30, (3, 5))),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(3, 5, 8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_built_in_rules_hold_by_this_measure(model: nn.Module, x: Tensor) -> None:
    GPM(model, threshold=0.5).consolidate([x])


def test_a_layer_inside_a_checked_one_remembers_each_input_once() -> None:
    class Outer(Own):
        def __init__(self) -> None:
            super().__init__(lambda m, x: m.inner(x) + x @ m.kernel)
            self.inner = nn.Linear(6, 6)

    register_layer(Outer, lambda layer: LayerView(layer.kernel, rows, output_dim=1))
    seen: list[Tensor] = []
    model = Outer()
    model.inner.register_forward_hook(lambda *_: seen.append(model.kernel.detach().clone()))
    memory = GPM(model, threshold=1.0, exclude=["offset"])
    added = memory.consolidate(torch.randn(2, 6))
    assert added == {"model": 2, "inner": 2}
    assert len(seen) > 1, "the question was asked"
