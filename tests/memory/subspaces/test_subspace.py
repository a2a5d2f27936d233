"""The mathematics of one layer's memory, each property beside a slow and obvious version."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from remnant import Subspace
from remnant.memory.subspaces import split_products
from remnant.memory.subspaces.axes import AxisSubspace
from remnant.memory.subspaces.gram import Gram, GroupGram
from remnant.memory.subspaces.projection import Projection

seeds = st.integers(0, 2**20)


def rows(seed: int, count: int, size: int, *, decay: float = 0.7) -> Tensor:
    """Rows whose energy falls off geometrically along random directions."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    scale = decay ** torch.arange(size, dtype=torch.float64)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) * scale @ mix


def grown(size: int, *tasks: tuple[int, int], threshold: float = 0.95) -> Subspace:
    subspace = Subspace(size)
    for seed, count in tasks:
        data = rows(seed, count, size)
        subspace.grow(data.mT @ data, threshold)
    return subspace


def explained(subspace: Subspace, data: Tensor) -> float:
    return float((data - subspace.remove(data)).square().sum() / data.square().sum())


@given(seeds, st.integers(2, 24), st.integers(1, 40), st.floats(0.05, 0.999))
def test_rank_is_the_smallest_that_meets_the_threshold(seed: int, size: int, count: int, threshold: float) -> None:
    data = rows(seed, count, size)
    singular = np.linalg.svd(data.numpy(), compute_uv=False)
    ratios = np.cumsum(singular**2) / np.sum(singular**2)
    subspace = Subspace(size)
    assert subspace.grow(data.mT @ data, threshold) == int(np.argmax(ratios >= threshold)) + 1  # Eq. 5, by SVD
    assert explained(subspace, data) >= threshold - 1e-12


@given(seeds, st.integers(3, 20), st.floats(0.3, 0.999))
def test_later_growth_counts_what_is_known_and_adds_no_more_than_needed(seed: int, size: int, threshold: float) -> None:
    subspace = grown(size, (seed, 30), threshold=0.6)
    data = rows(seed + 1, 30, size)
    basis = subspace.basis.numpy()
    residual = data.numpy() - data.numpy() @ basis @ basis.T  # Eq. 8, on the samples themselves
    singular = np.linalg.svd(residual, compute_uv=False)
    energy = np.sum(data.numpy() ** 2)
    known = energy - np.sum(singular**2)
    expected = 0
    while known + np.sum(singular[:expected] ** 2) < threshold * energy:  # Eq. 9, one direction at a time
        expected += 1
    assert subspace.grow(data.mT @ data, threshold) == expected
    assert explained(subspace, data) >= threshold - 1e-12


@given(seeds, st.integers(3, 20), st.floats(0.3, 0.99))
def test_the_authors_rule_takes_one_direction_fewer_in_the_first_task_only(
    seed: int, size: int, threshold: float
) -> None:
    data = rows(seed, 50, size)
    paper, authors = Subspace(size), Subspace(size)
    assert authors.grow(data.mT @ data, threshold, "authors") == paper.grow(data.mT @ data, threshold) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fifty_growths_leave_the_basis_orthonormal_and_every_old_span_inside_the_new(dtype: torch.dtype) -> None:
    subspace = Subspace(120, dtype=dtype)
    for task in range(50):
        before = subspace.basis.double()
        data = rows(task, 200, 120, decay=0.85)
        subspace.grow(data.mT @ data, 0.6)
        basis = subspace.basis.double()
        assert torch.allclose(basis.mT @ basis, torch.eye(subspace.rank, dtype=torch.float64), atol=1e-6)
        assert torch.allclose(basis @ (basis.mT @ before), before, atol=1e-6)
    assert subspace.rank > 60  # it did cross into complement storage on the way


@given(seeds, st.integers(2, 16))
def test_complement_storage_gives_the_same_projection(seed: int, size: int) -> None:
    subspace = grown(size, (seed, 60), threshold=0.999)
    x = torch.randn(5, size, dtype=torch.float64)
    explicit = x - x @ subspace.basis @ subspace.basis.mT
    other = x @ subspace.complement @ subspace.complement.mT
    assert torch.allclose(subspace.remove(x), explicit, atol=1e-12)
    assert torch.allclose(subspace.remove(x), other, atol=1e-12)
    assert subspace.state().keys() == ({"complement"} if 2 * subspace.rank > size else {"basis"})


@given(seeds, st.integers(2, 16), st.floats(0.2, 1.0))
def test_projection_is_idempotent_and_leaves_nothing_inside(seed: int, size: int, threshold: float) -> None:
    subspace = grown(size, (seed, 20), (seed + 1, 20), threshold=threshold)
    x = torch.randn(4, size, dtype=torch.float64)
    once = subspace.remove(x)
    assert torch.allclose(subspace.remove(once), once, atol=1e-12)
    assert torch.allclose(once @ subspace.basis, torch.zeros((), dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("form", ["low-rank", "complement", "dense"])
@given(seed=seeds, size=st.integers(2, 14), groups=st.integers(1, 4))
def test_every_form_of_the_projection_gives_what_the_formula_gives(
    form: str, seed: int, size: int, groups: int
) -> None:
    subspaces = [grown(size, (seed + group, 10 + 5 * group), threshold=0.7 + 0.09 * group) for group in range(groups)]
    x = torch.randn(groups, 3, size, dtype=torch.float64)
    expected = torch.stack([part - part @ s.basis @ s.basis.mT for part, s in zip(x, subspaces, strict=True)])
    projection = Projection(subspaces, 3, torch.float64, torch.device("cpu"), form=form)
    assert torch.allclose(projection.remove(x), expected, atol=1e-12)
    assert torch.allclose(projection.remove_(x.clone()), expected, atol=1e-12)
    start = torch.randn_like(x)
    assert torch.allclose(projection.restore_(start + x, start), start + expected, atol=1e-12)
    # Also where the matrix is a transposed view, as that of a weight stored inputs × outputs.
    turned = (start + x).mT.contiguous().mT
    assert torch.allclose(projection.restore_(turned, start), start + expected, atol=1e-12)
    assert torch.allclose(turned, start + expected, atol=1e-12)
    # And where inputs come in another order than the subspaces have them.
    order = torch.randperm(size)
    ordered = Projection(subspaces, 3, torch.float64, torch.device("cpu"), form=form, order=order)
    assert torch.allclose(ordered.remove(x[..., order]), expected[..., order], atol=1e-12)


@given(seeds, st.integers(2, 10))
def test_weighted_directions_are_removed_by_their_weight(seed: int, size: int) -> None:
    subspace = grown(size, (seed, 30), threshold=0.9)
    weights = torch.rand(subspace.rank, dtype=torch.float64)
    subspace.weights = weights
    x = torch.randn(1, 3, size, dtype=torch.float64)
    basis = subspace.basis
    expected = x - x @ basis @ torch.diag(weights) @ basis.mT
    assert torch.allclose(subspace.remove(x), expected, atol=1e-12)
    for form in ("low-rank", "dense"):
        projection = Projection([subspace], 3, torch.float64, torch.device("cpu"), form=form)
        assert torch.allclose(projection.remove(x), expected, atol=1e-12)
        back = torch.arange(size).flip(0)
        ordered = Projection([subspace], 3, torch.float64, torch.device("cpu"), form=form, order=back)
        assert torch.allclose(ordered.remove(x.flip(2)), expected.flip(2), atol=1e-12)
    with pytest.raises(ValueError, match="lies in"):
        subspace.weights = weights + 1


@given(seeds, st.integers(1, 12), st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_the_gram_does_not_depend_on_how_rows_are_batched(seed: int, size: int, parts: list[int]) -> None:
    data = rows(seed, sum(parts), size)
    gram = Gram(1, size, torch.device("cpu"))
    for part in data.split(parts):
        gram.add(part.unsqueeze(0))
    assert torch.allclose(gram.matrix()[0], data.mT @ data, atol=1e-12)
    whole = GroupGram.of(data.mT @ data)
    assert torch.allclose(gram.of_group(0).energy(), whole.energy(), rtol=1e-12)
    one, other = Subspace(size), Subspace(size)
    assert one.grow(gram.of_group(0), 0.9) == other.grow(data.mT @ data, 0.9)
    x = torch.randn(3, size, dtype=torch.float64)
    assert torch.allclose(one.remove(x), other.remove(x), atol=1e-9)


def test_blocks_of_a_wide_gram_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.subspaces.gram.BLOCK", 3)
    data = rows(3, 50, 10)
    gram = Gram(1, 10, torch.device("cpu"))
    gram.add(data.unsqueeze(0))
    assert torch.allclose(gram.matrix()[0], data.mT @ data, atol=1e-12)


@given(seeds, st.integers(1, 12), st.floats(0.1, 1.0))
def test_axes_of_one_hot_inputs_grow_as_their_dense_gram_would(seed: int, size: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Distinct counts, so that "the most frequent ones" is one answer.
    counts = (torch.randperm(3 * size, generator=generator)[:size] * 2.0).double()
    axes, dense = AxisSubspace(size), Subspace(size)
    assert axes.grow(counts, threshold) == dense.grow(torch.diag(counts), threshold)
    x = torch.randn(4, size, dtype=torch.float64)
    assert torch.allclose(axes.remove(x), dense.remove(x), atol=1e-9)
    assert torch.allclose(axes.basis @ axes.basis.mT, dense.basis @ dense.basis.mT, atol=1e-9)


def test_the_whole_space_can_be_filled_and_then_holds_still() -> None:
    subspace = grown(6, (0, 40), threshold=1.0)
    assert subspace.rank == subspace.capacity
    assert subspace.grow(torch.eye(6), 1.0) == 0
    assert torch.count_nonzero(subspace.remove(torch.randn(3, 6, dtype=torch.float64))) == 0


def test_inputs_that_are_all_zero_add_nothing() -> None:
    subspace = Subspace(4)
    assert subspace.grow(torch.zeros(4, 4), 0.9) == 0
    assert subspace.rank == 0


def test_a_gram_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="square"):
        Subspace(4).grow(torch.zeros(4, 5), 0.9)
    with pytest.raises(ValueError, match="cannot grow"):
        Subspace(4).grow(torch.eye(5), 0.9)


@pytest.mark.parametrize("decay", [0.93, 0.98, 0.9995])
@pytest.mark.parametrize("rule", ["paper", "authors"])
def test_a_large_gram_grows_as_its_full_decomposition_would(
    decay: float, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block Lanczos where it converges, the full decomposition where it does not (the flat spectrum): one answer."""
    size = 400
    first, second = rows(1, 900, size, decay=decay), rows(2, 900, size, decay=decay)
    x = torch.randn(3, size, dtype=torch.float64)
    results = []
    for worthwhile in (10_000, 100):
        monkeypatch.setattr("remnant.memory.subspaces.gram.LANCZOS_FROM", worthwhile)
        monkeypatch.setattr("remnant.memory.subspaces.lanczos.BLOCK", 16)
        subspace = Subspace(size)
        counts = [subspace.grow(data.mT @ data, 0.9, rule) for data in (first, second)]
        results.append((counts, subspace.remove(x)))
    assert results[0][0] == results[1][0]
    assert torch.allclose(results[0][1], results[1][1], atol=1e-9)


def test_block_lanczos_really_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.subspaces.gram.LANCZOS_FROM", 100)
    monkeypatch.setattr("remnant.memory.subspaces.lanczos.BLOCK", 16)
    data = rows(1, 900, 400, decay=0.93)
    values, vectors = GroupGram(data.mT @ data).spectrum(0.9 * float(data.square().sum()))
    assert len(values) < 200
    assert torch.allclose(vectors.mT @ vectors, torch.eye(len(values), dtype=torch.float64), atol=1e-12)
    exact = torch.linalg.eigvalsh(data.mT @ data).flip(0)[: len(values)]
    assert torch.allclose(values, exact, rtol=0, atol=1e-11 * float(exact[0]))


def test_a_wide_layer_uses_block_lanczos_for_more_of_its_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.subspaces.gram.LANCZOS_FROM", 100)
    monkeypatch.setattr("remnant.memory.subspaces.lanczos.BLOCK", 16)
    data = rows(1, 900, 400, decay=0.98)
    gram, enough = data.mT @ data, 0.9 * float(data.square().sum())
    everything, _ = GroupGram(gram).spectrum(enough)
    assert len(everything) == 400
    monkeypatch.setattr("remnant.memory.subspaces.gram.WIDE", 400)
    values, vectors = GroupGram(gram).spectrum(enough)
    assert len(values) < 80
    assert torch.allclose(values, everything[: len(values)], rtol=0, atol=1e-11 * float(values[0]))
    assert torch.allclose(gram @ vectors, vectors * values, rtol=0, atol=1e-11 * float(values[0]))


def test_lanczos_is_not_tried_for_white_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remnant.memory.subspaces.gram.LANCZOS_FROM", 100)
    monkeypatch.setattr("remnant.memory.subspaces.lanczos.leading", None)
    data = torch.randn(4000, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert len(GroupGram(data.mT @ data).spectrum(0.9 * float(data.square().sum()))[0]) == 400


@pytest.mark.parametrize("form", ["low-rank", "complement"])
def test_split_products_leak_as_little_as_those_of_float32(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products lose the low bits of all factors here, as TF32 products do on a GPU."""
    bmm, baddbmm = torch.bmm, torch.baddbmm

    def in_tf32(x: Tensor) -> Tensor:
        return split_products.split(x)[0]

    torch.manual_seed(0)
    subspace = grown(200, (0, 80), threshold=1.0)
    projection = Projection([subspace], 50, torch.float32, torch.device("cpu"), form=form)
    x, start = torch.randn(1, 50, 200), torch.randn(1, 50, 200)
    expected = subspace.remove(x[0].double())
    monkeypatch.setattr(torch, "bmm", lambda x, y, **to: bmm(in_tf32(x), in_tf32(y), **to))
    monkeypatch.setattr(torch, "baddbmm", lambda base, x, y, **to: baddbmm(base, in_tf32(x), in_tf32(y), **to))
    leaks = []
    for products in (torch, split_products):
        projection.bmm, projection.baddbmm = products.bmm, products.baddbmm
        inside = projection.remove(x)[0].double() @ subspace.basis
        leaks.append(float(inside.norm() / x.norm()))
    assert leaks[0] > 5e-5
    assert leaks[1] < 1e-6
    torch.testing.assert_close(projection.remove_(x.clone())[0].double(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        projection.restore_(start + x, start)[0].double(), start[0] + expected, atol=1e-5, rtol=0
    )
