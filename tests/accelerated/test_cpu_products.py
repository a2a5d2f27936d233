"""Faster products on a CPU lose no precision."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from remnant.accelerated import cpu_products
from remnant.accelerated.cpu_products import use_fast_products


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def test_products_of_a_wide_network_are_as_exact_as_before() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(64, 700), torch.randn(300, 700)
    exact = x.double() @ weight.double().mT
    error = (x @ weight.mT - exact).abs().max()
    use_fast_products(nn.Linear(700, 300))
    # bfloat16 would have an error of about 0.1. The order of additions may differ.
    assert (x @ weight.mT - exact).abs().max() < max(20 * error, 1e-4)


def test_a_narrow_network_keeps_its_products() -> None:
    use_fast_products(nn.Linear(64, 32))
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_processor_that_would_round_to_bfloat16_keeps_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_products, "_medium_is_exact", lambda: False)
    use_fast_products(nn.Linear(700, 300))
    assert torch.get_float32_matmul_precision() == "highest"
