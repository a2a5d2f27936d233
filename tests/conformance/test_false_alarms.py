"""`verify` is green when only rounding moved W·M, and red for a leak of a few times that size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant import GPM, LeakError

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
pytestmark = pytest.mark.filterwarnings("ignore:Full, and from now on fixed", "ignore:Old outputs moved")


def trained(optimizer: str, dtype: torch.dtype, lr: float, steps: int, seed: int) -> tuple[GPM, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).to(dtype)
    memory = GPM(model, threshold=0.95)
    memory.consolidate((torch.randn(50, 6) @ torch.randn(6, 20)).to(dtype))
    chosen = memory.attach(OPTIMIZERS[optimizer](model.parameters(), lr=lr))
    x = (torch.randn(50, 20) + 1).to(dtype)
    for _ in range(steps):
        chosen.zero_grad()
        (model(x) - 1).square().mean().backward()
        chosen.step()
    return memory, x


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    lr=st.sampled_from([1e-6, 1e-5, 1e-4, 1e-3, 1e-2]),
    steps=st.integers(1, 32),
    seed=st.integers(0, 99),
)
def test_rounding_is_no_leak_and_a_few_times_as_much_is(
    optimizer: str, dtype: torch.dtype, lr: float, steps: int, seed: int
) -> None:
    memory, _ = trained(optimizer, dtype, lr, steps, seed)
    layer = memory.verify(tolerance=1e-15).layers[0]
    weight = memory._model[0].weight.detach()
    moved = memory._protection.weights[0].difference(memory._constraint.anchors).norm()
    size = 4 * max(layer.rounding * float(moved), torch.finfo(dtype).eps * float(weight.norm()))
    basis = memory.subspaces["0"].basis[:20, :1].double()  # without the bias
    direction = torch.ones(30, 1, dtype=torch.float64) / 30**0.5 @ (basis / basis.norm()).mT
    weight.copy_(weight.double() + size * direction)
    with pytest.raises(LeakError, match="'0'"):
        memory.verify(tolerance=1e-15)


@pytest.mark.parametrize(("lr", "steps"), [(1e-3, 15), (1e-4, 7), (1e-5, 7), (1e-6, 15)])
def test_few_small_steps_of_plain_sgd_raise_no_alarm(lr: float, steps: int) -> None:
    for seed in range(20):
        memory, x = trained("sgd", torch.float32, lr, steps, seed)
        memory.verify(x)
