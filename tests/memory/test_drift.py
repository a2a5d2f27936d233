"""The drift ΔW·x on an old task's inputs: computed by hand, in another way, and zero for protected weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant.memory import GPM
from remnant.memory.drift import HALF, SMALLEST, Histogram, activation_drift

finite = st.floats(-1e6, 1e6, width=32)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def counted(values: Tensor) -> Histogram:
    histogram = Histogram()
    histogram.add(values)
    return histogram


def filled(histogram: Histogram) -> dict[float, int]:
    """The lower edges of the bins that hold something."""
    return {edge: count for edge, count in zip(histogram.edges, histogram.counts, strict=False) if count}


# --- the histogram ----------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(finite, max_size=20), max_size=6))
def test_values_in_any_batches_are_counted_as_numpy_counts_them_at_once(batches: list[list[float]]) -> None:
    histogram = Histogram()
    for batch in batches:
        histogram.add(torch.tensor(batch))
    together = np.array([value for batch in batches for value in batch], dtype=np.float64)
    counts, _ = np.histogram(together, histogram.edges)
    assert histogram.counts == counts.tolist()
    largest = max(np.abs(together), default=0.0)
    assert histogram.edges[-1] == -histogram.edges[0] > largest
    assert histogram.edges[-1] == 2.0**SMALLEST or histogram.edges[-1] / 2 <= largest  # no wider than it must be
    assert len(histogram.counts) == 2 * HALF


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or inf"):
        Histogram().add(torch.tensor([1.0, bad]))


# --- drift ------------------------------------------------------------------------------------------------------------


def test_two_linear_layers_by_hand() -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 1)
    model = nn.Sequential(first, second)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        second.weight.copy_(torch.tensor([[1.0, 1.0]]))
        second.bias.fill_(0.0)
    before = state(model)
    with torch.no_grad():
        first.weight.add_(torch.tensor([[0.0, 0.5], [-1.0, 0.0]]))
        second.weight.add_(torch.tensor([[0.25, 0.0]]))
        second.bias.fill_(2.0)
    found = activation_drift(model, before, [(torch.tensor([[4.0, 2.0]]),)])
    # ΔW₁·(4, 2) = (1, −4). The second layer's input is the old network's, (4, 2): 0.25·4 + Δb = 3. Today's, (5, −2), would
    # make it 3.25.
    assert filled(found["0"]) == {1.0: 1, -4.0: 1}
    assert filled(found["1"]) == {3.0: 1}
    assert torch.equal(first.weight, torch.tensor([[1.0, 0.5], [-1.0, 1.0]]))  # the model is left as it is


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_is_the_convolution_with_what_has_changed(groups: int) -> None:
    layer = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=groups)
    model = nn.Sequential(layer, nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 3))
    before = state(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    batches = [torch.randn(5, 4, 8, 8), torch.randn(3, 4, 8, 8)]
    found = activation_drift(model, before, [(x,) for x in batches], layers=["0"])
    assert assert_same(found.pop("0"), layer, before, batches) == 8 * 6 * 16
    assert not found


def assert_same(found: Histogram, layer: nn.Conv2d, before: dict[str, Tensor], batches: list[Tensor]) -> int:
    """Compares with the slow, obvious way; a value on the edge of a bin may round into the next."""
    weight, bias = layer.weight - before["0.weight"], layer.bias - before["0.bias"]  # type: ignore[operator]
    values = F.conv2d(torch.cat(batches), weight, bias, layer.stride, layer.padding, groups=layer.groups)
    plain = counted(values.detach())
    assert found.edges == plain.edges
    assert sum(abs(a - b) for a, b in zip(found.counts, plain.counts, strict=True)) <= 2
    return sum(found.counts)


def test_shared_weights_and_embeddings_follow() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 3)
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.b(self.a(self.words(x))))

    model = Tied()
    before = state(model)
    with torch.no_grad():
        model.words.weight[1] += 1.0
        model.a.weight += torch.eye(3)
    found = activation_drift(model, before, [(torch.tensor([0, 1, 1]),)])
    assert filled(found["words"]) == {0.0: 3, 1.0: 6}
    middle = before["words.weight"][[0, 1, 1]]
    assert (
        found["a"].counts == counted(torch.cat([middle, middle @ before["a.weight"].T])).counts
    )  # ΔW = I, at two places


def test_a_state_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`before` has no 'weight'"):
        activation_drift(nn.Linear(2, 2), {}, [(torch.zeros(1, 2),)])


@pytest.mark.filterwarnings("ignore:These layers are full")
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_nothing_drifts_where_nothing_moves_inside_what_is_remembered(kind: type[torch.optim.Optimizer]) -> None:
    old = torch.randn(40, 3) @ torch.randn(3, 12)  # a plane of three dimensions, which the memory remembers completely
    new, labels = torch.randn(40, 12), torch.randint(4, (40,))

    def learnt(protected: bool) -> float:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 4))
        memory = GPM(model, threshold=1.0)
        optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
        memory.consolidate([old])
        before = state(model)
        if protected:
            memory.attach(optimizer)
        for _ in range(20):
            optimizer.zero_grad()
            F.cross_entropy(model(new), labels).backward()
            optimizer.step()
        found = activation_drift(model, before, [(old,)])
        assert sum(found["0"].counts) == 400
        return found["0"].edges[-1]

    assert learnt(protected=True) <= 2.0**-15
    assert learnt(protected=False) > 0.1
