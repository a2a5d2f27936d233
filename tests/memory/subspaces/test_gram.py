"""Gram matrices: rows that leave columns out are summed as all others, and faint directions of float64 rows are found."""

from __future__ import annotations

import pytest
import torch
from attached import train_attached
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from remnant import GPM, Subspace
from remnant.memory.subspaces.gram import Gram

CPU = torch.device("cpu")


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    used=st.lists(st.booleans(), min_size=12, max_size=12),
    groups=st.integers(1, 2),
)
def test_chunks_with_empty_columns_give_the_gram_matrix_of_all_rows(
    sizes: list[int], used: list[bool], groups: int
) -> None:
    gram, parts = Gram(groups, 12, CPU), []
    for turn, count in enumerate(sizes):
        mask = torch.tensor(used).roll(turn) if turn % 2 else torch.tensor(used)
        parts.append(torch.randn(groups, count, 12) * mask)
        gram.add(parts[-1])
    rows = torch.cat(parts, dim=1).double()
    torch.testing.assert_close(gram.matrix(), rows.mT @ rows)
    found = gram.of_group(0)
    whole = found.tensor.mT @ found.tensor if found.is_rows else found.tensor
    torch.testing.assert_close(whole, rows[0].mT @ rows[0])


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_value_that_is_not_finite_is_found_in_few_and_in_many_rows(value: float, count: int) -> None:
    for spoilt in (False, True):
        rows, gram = torch.randn(2, count, 12), Gram(2, 12, CPU)
        if spoilt:
            rows[1, 2, 5] = value
        for part in rows.split(2, dim=1):
            gram.add(part)
        assert gram.is_finite() is not spoilt


@pytest.mark.parametrize("faint", [1e-6, 1e-9, 1e-12])
def test_a_faint_direction_of_float64_rows_is_remembered_at_a_threshold_of_one(faint: float) -> None:
    torch.manual_seed(0)
    frame = torch.linalg.qr(torch.randn(40, 5, dtype=torch.float64))[0]
    rows = torch.randn(9, 5, dtype=torch.float64) * torch.tensor([1, 1, 1, 1, faint], dtype=torch.float64) @ frame.mT
    gram = Gram(1, 40, CPU)
    gram.add(rows[None])
    subspace = Subspace(40)
    assert subspace.grow(gram.of_group(0), 1.0) == 5
    assert float(subspace.remove(rows).norm() / rows.norm()) < 1e-15
    assert subspace.grow(gram.of_group(0), 1.0) == 0, "rounding adds nothing"
    few = Subspace(40)
    assert few.grow(gram.of_group(0), 0.5) <= 4


def test_a_float64_network_with_faint_inputs_does_not_drift() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    old = torch.randn(9, 5).double() * torch.tensor([1, 1, 1, 1e-5, 1e-9]).double() @ torch.randn(5, 40).double()
    memory = GPM(model, threshold=1.0)
    memory.consolidate(old)
    before = model(old).detach()
    train_attached(memory, lambda: (model(torch.randn(30, 40).double()) - 1).square().mean())
    assert float((model(old) - before).norm() / before.norm()) < 1e-13
