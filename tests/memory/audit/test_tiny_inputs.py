"""Inputs of any size are protected, tested and described alike: 1e-6 or 1e-30 times the usual ones."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from small_net import data, train
from torch import Tensor, nn

from remnant import GPM, ConsolidationError, LeakError

SCALES = [1.0, 1e-6, 1e-12, 1e-20, 1e-30]
TYPES = [torch.float32, torch.float64]


class Twice(nn.Module):
    """Reads a weight a second time, for other inputs than its layer gets."""

    def __init__(self, bias: bool = False, again: float = 1.0) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(8, 6, bias=bias), nn.Linear(6, 3, bias=bias)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.first(x))) + self.again * F.linear(x.flip(1), self.first.weight)[:, :3]


@pytest.mark.parametrize("dtype", TYPES)
def test_the_drift_of_outputs_does_not_depend_on_their_size(dtype: torch.dtype) -> None:
    drifts = []
    for scale in SCALES:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)).to(dtype)
        memory = GPM(model, 0.9)
        memory.consolidate(scale * data().to(dtype))
        train(model, memory.attach(torch.optim.SGD(model.parameters(), lr=0.1)), torch.randn(24, 8, dtype=dtype))
        drifts.append(memory.verify(tolerance=1e-3).tasks[0].drift)
    assert drifts[0] > 1e-3
    assert drifts == pytest.approx([drifts[0]] * len(SCALES), rel=1e-3)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", SCALES)
def test_a_second_use_of_a_weight_is_refused_for_inputs_of_any_size(scale: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Twice().to(dtype)
    with pytest.raises(ConsolidationError, match=r"'first' \(Linear, \d\.\d%\)"):
        GPM(model).consolidate(scale * data().to(dtype))


def test_a_small_change_of_the_outputs_is_not_called_zero() -> None:
    """Beside biases, tiny inputs move the outputs by a small share."""
    torch.manual_seed(0)
    with pytest.raises(ConsolidationError, match="'first'") as refused:
        GPM(Twice(bias=True)).consolidate(1e-3 * data())
    (share,) = re.findall(r"Linear, (\S+)%", str(refused.value))
    assert 0 < float(share) < 0.05

    model = Twice(bias=True, again=0.0).double()
    memory = GPM(model)
    memory.consolidate(data().double())
    model.again = 1e-6
    with pytest.raises(LeakError, match="different outputs") as refused:
        memory.verify()
    (share,) = re.findall(r"\((\S+)% apart", str(refused.value))
    assert 0 < float(share) < 0.01
