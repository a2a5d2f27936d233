"""Layers with a forward of their own are recorded by what reaches the forward that their rule describes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from attached import train_attached
from torch import Tensor, nn

from remnant import GPM, ConsolidationError
from remnant.memory.layers import described_forward

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


class FromMask(nn.Embedding):
    """As OPT's position embedding."""

    def forward(self, attention_mask: Tensor, past: int = 0) -> Tensor:  # type: ignore[override]
        positions = (attention_mask.cumsum(1) * attention_mask - 1).long()[:, past:]
        return super().forward(positions + 2)


class FromShape(nn.Embedding):
    """As BART's: only the shape of its input matters."""

    def forward(self, input_ids: Tensor, past: int = 0, position_ids: Tensor | None = None) -> Tensor:  # type: ignore[override]
        positions = torch.arange(past, past + input_ids.shape[1]).expand(len(input_ids), -1)
        return super().forward((positions if position_ids is None else position_ids) + 2)


class Sliced(nn.Embedding):
    """As Whisper's: it reads its weight itself."""

    def forward(self, input_ids: Tensor, past: int = 0, position_ids: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.weight[past : past + input_ids.shape[1]] if position_ids is None else self.weight[position_ids]


class Positioned(nn.Module):
    """Tokens and positions; a shifted past moves the positions of the second task."""

    def __init__(self, kind: type[nn.Embedding]) -> None:
        super().__init__()
        self.tok, self.pos, self.out, self.past = nn.Embedding(12, 8), kind(20, 8), nn.Linear(8, 3), 0

    def forward(self, tokens: Tensor) -> Tensor:
        given = torch.ones(len(tokens), tokens.shape[1] + self.past, dtype=torch.long)
        positions = self.pos(given if isinstance(self.pos, FromMask) else tokens, self.past)
        return torch.as_tensor(self.out(torch.tanh(self.tok(tokens) + positions)))


TOKENS = torch.arange(15).reshape(3, 5) % 6


@pytest.mark.parametrize(
    ("kind", "used"), [(FromMask, {2, 3, 4, 5, 6}), (FromShape, {2, 3, 4, 5, 6}), (Sliced, {0, 1, 2, 3, 4})]
)
def test_position_embeddings_remember_the_positions_they_used(kind: type[nn.Embedding], used: set[int]) -> None:
    torch.manual_seed(0)
    model = Positioned(kind)
    memory = GPM(model, threshold=1.0)
    train_attached(memory, lambda: (model(TOKENS) - 1).square().mean(), steps=5)
    assert memory.consolidate(TOKENS)["pos"] == 5
    assert set(memory.subspaces["pos"].basis.nonzero()[:, 0].tolist()) == used
    before, table = model(TOKENS).detach(), model.pos.weight.detach().clone()
    model.past = 7
    train_attached(memory, lambda: (model(TOKENS + 6) - 1).square().mean())
    model.past = 0
    torch.testing.assert_close(model(TOKENS), before, atol=1e-5, rtol=0)
    assert not torch.equal(model.pos.weight, table), "other positions learn"
    memory.verify()


class Scaled(nn.Embedding):
    """As Gemma's."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 8**0.5


class Casting(nn.Linear):
    """As timm's: it calls the function, not the base."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype), None if self.bias is None else self.bias.to(input.dtype))


class Clipping(nn.Linear):
    """Passes something other than its input on to the base."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.relu())


class TwiceBase(nn.Linear):
    def forward(self, input: Tensor, other: float = 2.0) -> Tensor:
        return super().forward(input) + super().forward(input * other + 1)


def of(layer: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(12, 20), nn.Tanh(), layer, nn.Tanh(), nn.Linear(20, 3))


@pytest.mark.parametrize("kind", [Casting, Clipping, TwiceBase])
def test_linear_subclasses_with_a_right_forward_are_protected(kind: type[nn.Linear]) -> None:
    torch.manual_seed(0)
    model = of(kind(20, 20))()
    old, new = torch.randn(30, 2) @ torch.randn(2, 12), torch.randn(30, 12)
    memory = GPM(model, threshold=1.0)
    memory.consolidate(old)
    before = model(old).detach()
    train_attached(memory, lambda: (model(new) - 1).square().mean())
    assert float((model(old) - before).norm() / before.norm()) < 1e-4
    memory.verify(old)
    assert type(model[2]).__mro__[1].forward is nn.Linear.forward, "the class is as it was"


def test_the_base_is_as_it_was_after_an_error() -> None:
    before = nn.Linear.forward
    model = of(TwiceBase(20, 20))()
    with pytest.raises(RuntimeError):
        GPM(model).consolidate([torch.randn(4, 5)])
    assert nn.Linear.forward is before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_scaled_embedding_is_protected_and_one_that_reads_another_row_refused() -> None:
    class Neighbour(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + self.weight[input + 6]

    GPM(nn.Sequential(Scaled(12, 6), nn.Linear(6, 3)), threshold=0.5).consolidate(TOKENS)
    with pytest.raises(ConsolidationError, match=r"'0' \(Neighbour"):
        GPM(nn.Sequential(Neighbour(12, 6), nn.Linear(6, 3)), threshold=0.5).consolidate(TOKENS)


def test_plain_layers_have_no_other_forward() -> None:
    assert described_forward(nn.Linear(2, 2)) is None
    assert described_forward(Clipping(2, 2)) is nn.Linear
    assert described_forward(Sliced(2, 2)) is nn.Embedding
