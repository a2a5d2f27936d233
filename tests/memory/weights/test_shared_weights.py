"""One weight seen by two layers, or called twice, holds what each of them must remember."""

from __future__ import annotations

import pytest
import torch
from attached import train_attached
from fates import fates
from torch import Tensor, nn

from remnant import GPM, UnsupportedError


def test_two_layers_with_one_weight_and_two_biases_share_a_subspace() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 5), nn.Linear(8, 5)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(y)

    model = Twins()
    memory = GPM(model, threshold=1.0)
    x, y = torch.randn(20, 2) @ torch.randn(2, 8) + 1, torch.randn(20, 2) @ torch.randn(2, 8) - 1
    memory.consolidate({"x": x, "y": y})
    assert set(memory.subspaces) == {"a"}
    assert memory.subspaces["a"].capacity == 8 + 2
    before = model(x, y)
    train_attached(
        memory, lambda: sum((out - 3).square().mean() for out in model(torch.randn(9, 8), torch.randn(9, 8)))
    )
    for now, then in zip(model(x, y), before, strict=True):
        torch.testing.assert_close(now, then, atol=2e-5, rtol=0)


def test_a_module_called_twice_remembers_both_inputs() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6, bias=False)
            self.again = self.layer

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.layer(x))

    model = Twice().double()
    memory = GPM(model, threshold=1.0)
    x = torch.randn(2, 6, dtype=torch.float64)
    assert memory.consolidate(x) == {"layer": 4}
    both = torch.cat([x, model.layer(x).detach()])
    torch.testing.assert_close(memory.subspaces["layer"].remove(both), torch.zeros_like(both))


class TinyLM(nn.Module):
    """An embedding whose weight is the output layer's too."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 6)
        self.head = nn.Linear(6, 12, bias=bias)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


@pytest.mark.parametrize("bias", [False, True])
def test_tied_embeddings_hold_both_constraints_at_once(bias: bool) -> None:
    model = TinyLM(bias)
    memory = GPM(model, threshold=1.0)
    old = torch.tensor([[0, 1, 2]])
    memory.consolidate(old)
    assert set(memory.subspaces) == {"embed", "head"}
    assert fates(memory) == {"embed.weight": "protected"} | ({"head.bias": "frozen"} if bias else {})
    before, weight = model(old).detach(), model.embed.weight.detach().clone()
    new = torch.randint(12, (5, 4))
    train_attached(memory, lambda: nn.functional.cross_entropy(model(new).flatten(0, 1), new.flatten()), steps=50)
    moved = model.embed.weight.detach() - weight
    assert moved.norm() > 0.1, "the other tokens must still learn"
    assert torch.equal(moved[:3], torch.zeros(3, 6))
    seen = memory.subspaces["head"].basis.to(moved)
    assert (moved @ seen).norm() < 1e-5
    torch.testing.assert_close(model(old), before, atol=1e-5, rtol=0)
    memory.verify()


@pytest.mark.parametrize(
    ("arguments", "protected"),
    [
        ({"protect": ["head"]}, {"head"}),
        ({"protect": ["embed"]}, {"embed"}),
        ({"exclude": ["embed"]}, {"head"}),
        ({"exclude": ["head.weight"]}, {"embed"}),
    ],
    ids=str,
)
def test_of_two_layers_that_share_a_weight_a_pattern_may_mean_one(arguments: dict, protected: set[str]) -> None:
    assert set(GPM(TinyLM(bias=False), **arguments).subspaces) == protected


def test_a_weight_seen_in_ways_that_exclude_each_other_is_refused() -> None:
    a, b = nn.Conv1d(4, 4, 1, groups=1), nn.Conv1d(8, 4, 1, groups=2)
    b.weight = a.weight
    with pytest.raises(UnsupportedError, match=r"'0\.weight'.*exclude each other"):
        GPM(nn.Sequential(a, b))
