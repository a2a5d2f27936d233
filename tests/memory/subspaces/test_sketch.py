"""A sketch of a wide layer's Gram matrix: a lower bound of it, close by its error bound, and directions that hold ε."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from remnant import GPM, Subspace
from remnant.memory.subspaces.gram import Gram
from remnant.memory.subspaces.sketch import Sketch, random_vectors

CPU = torch.device("cpu")


def rows(count: int, size: int, decay: float, seed: int) -> Tensor:
    """Rows whose singular values fall by e^decay, in directions of their own."""
    generator = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    sizes = torch.exp(-decay * torch.arange(size) / size)
    return (torch.randn(count, size, generator=generator, dtype=torch.float64) * sizes) @ turned


def sketched(x: Tensor, width: int, seed: int = 0) -> Sketch:
    sketch = Sketch(1, random_vectors(x.shape[1], width, CPU, seed=seed))
    for part in x.split(17):
        sketch.add(part[None])
    return sketch


cases = st.tuples(st.integers(20, 60), st.integers(5, 90), st.floats(0, 20), st.integers(0, 99))


@given(cases, st.integers(2, 12))
def test_a_sketch_never_exceeds_the_gram_matrix_and_knows_what_it_lacks(case: tuple, width: int) -> None:  # type: ignore[type-arg]
    size, count, decay, seed = case
    x = rows(count, size, decay, seed)
    gram, sketch = x.mT @ x, sketched(x, width).of_group(0)
    approximation = sketch.tensor.mT @ sketch.tensor
    largest = float(torch.linalg.eigvalsh(gram)[-1])
    assert float(torch.linalg.eigvalsh(gram - approximation)[0]) > -1e-10 * largest
    assert float(sketch.energy()) == pytest.approx(float(gram.trace()), rel=1e-12)
    assert float(sketch.rest) == pytest.approx(float((gram - approximation).trace()), abs=1e-9 * float(gram.trace()))


@pytest.mark.parametrize("decay", [2.0, 8.0, 20.0])
def test_the_mean_error_stays_within_the_bound(decay: float) -> None:
    x, width = rows(200, 60, decay, 1), 16
    values = torch.linalg.eigvalsh(x.mT @ x).flip(0)
    error = torch.stack([torch.as_tensor(sketched(x, width, seed).of_group(0).rest) for seed in range(30)]).mean()
    bounds = [float((1 + k / (width - k - 1)) * values[k:].sum()) for k in range(width - 1)]
    assert float(values[width:].sum()) < float(error) < 1.05 * min(bounds)


@given(cases, st.sampled_from([0.8, 0.95, 0.99]))
def test_the_directions_of_a_sketch_hold_the_threshold(case: tuple, threshold: float) -> None:  # type: ignore[type-arg]
    size, count, decay, seed = case
    first, second = rows(count, size, decay, seed), rows(count, size, decay, seed + 1)
    subspace = Subspace(size)
    for x in (first, second):
        sketch = sketched(x, size // 2)
        approximate, exact = sketch.of_group(0), Gram(1, size, CPU)
        exact.add(x[None])
        fewest = subspace.copy().grow(exact.of_group(0), threshold)
        added = subspace.grow(approximate, threshold)
        if sketch.missing <= 1 - threshold:
            assert added >= fewest
            assert float((x - subspace.remove(x)).square().sum()) >= (threshold - 1e-9) * float(x.square().sum())


def test_rows_of_lower_rank_than_the_sketch_are_exact() -> None:
    x = rows(10, 50, 3.0, 2)
    exact = Gram(1, 50, CPU)
    exact.add(x[None])
    one, other = Subspace(50), Subspace(50)
    assert one.grow(exact.of_group(0), 0.999) == other.grow(sketched(x, 12).of_group(0), 0.999)
    assert torch.allclose(one.remove(torch.eye(50).double()), other.remove(torch.eye(50).double()), atol=1e-8)


def test_the_parts_of_two_processes_add_up() -> None:
    x = rows(40, 30, 5.0, 3)
    whole, part = sketched(x, 8), sketched(x[:25], 8)
    part.replace(part.matrix() + sketched(x[25:], 8).matrix(), 40)
    assert torch.allclose(
        part.of_group(0).tensor.mT @ part.of_group(0).tensor, whole.of_group(0).tensor.mT @ whole.of_group(0).tensor
    )


def wide_task(seed: int) -> Tensor:
    return rows(120, 64, 12.0, seed).float()


def test_a_memory_with_a_sketch_holds_its_tasks_as_an_exact_one_does() -> None:
    model = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 3))
    exact = GPM(model, 0.95).consolidate([wide_task(0)])
    memory = GPM(model, 0.95, sketch=32)
    optimizer = memory.attach(torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05))
    added = memory.consolidate([wide_task(0)])
    assert exact["0"] <= added["0"] <= 1.2 * exact["0"]
    assert exact["2"] == added["2"]  # too narrow for a sketch
    for _ in range(20):
        optimizer.zero_grad()
        (model(wide_task(1)) - 1).square().mean().backward()
        optimizer.step()
    assert memory.verify().worst < 1e-4


def test_a_sketch_that_is_too_small_warns() -> None:
    memory = GPM(nn.Linear(64, 3), 0.999, sketch=4)
    with pytest.warns(UserWarning, match=r"The sketch of model is too small"):
        memory.consolidate([wide_task(0)])


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "8"])
def test_a_sketch_is_a_positive_whole_number(wrong: object) -> None:
    with pytest.raises(ValueError, match="sketch is"):
        GPM(nn.Linear(4, 2), sketch=wrong)  # type: ignore[arg-type]
