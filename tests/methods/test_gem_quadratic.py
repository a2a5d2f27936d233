"""The quadratic program of GEM, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import nnls

from remnant.methods.gem import EVERY_SET, NonNegativeQuadratic

Array = NDArray[np.float64]
CPU = torch.device("cpu")


def gradients(kind: str, tasks: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows G and a vector g, in the ways they may lie to each other."""
    length = 40
    G, g = rng.standard_normal((tasks, length)), rng.standard_normal(length)
    if kind == "in conflict":
        g = 0.3 * g - 2 * G.mean(0)
    elif kind == "much alike":
        G = 0.1 * G + rng.standard_normal(length)
        g = 0.2 * g - G.mean(0)
    elif kind == "twice the same":
        G[tasks // 2 :] = G[: tasks - tasks // 2]
        g = 0.5 * g - G.sum(0)
    elif kind == "dependent":
        few = max(1, tasks // 3)
        G = rng.standard_normal((tasks, few)) @ rng.standard_normal((few, length))
    elif kind == "opposed":
        G[0] = -G[-1]
    elif kind == "nearly one":
        G = G[0] + 1e-5 * G
    elif kind == "with a zero":
        G[0] = 0
    elif kind == "of all sizes":
        G *= 10.0 ** rng.uniform(-4, 2, (tasks, 1))
    return G, g


KINDS = [
    "any", "in conflict", "much alike", "twice the same", "dependent", "opposed", "nearly one", "with a zero", "of all sizes",
]  # fmt: skip


def solve(G: Array, g: Array) -> Array:
    solver = NonNegativeQuadratic(len(G), CPU)
    v: Array = solver.solve(torch.from_numpy(G @ G.T), torch.from_numpy(G @ g)).numpy()
    return v


@given(st.sampled_from(KINDS), st.integers(1, EVERY_SET), st.integers(0, 10**6))
def test_few_variables(kind: str, tasks: int, seed: int) -> None:
    G, g = gradients(kind, tasks, np.random.default_rng(seed))
    check(G, g)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tasks", [EVERY_SET + 1, 20])
def test_many_variables(kind: str, tasks: int) -> None:
    for seed in range(3):
        check(*gradients(kind, tasks, np.random.default_rng(seed)))


def check(G: Array, g: Array) -> None:
    """½vᵀGGᵀv + gᵀGᵀv is ½‖Gᵀv + g‖² and a constant: least squares with v ≥ 0, which SciPy has."""
    v = solve(G, g)
    expected, _ = nnls(G.T, -g, maxiter=10_000)
    assert v.min() >= 0
    size = np.linalg.norm(g)
    # v itself need not be unique, the step is.
    assert np.linalg.norm(G.T @ (v - expected)) <= 1e-8 * size
    assert (G @ (G.T @ v + g)).min() >= -1e-9 * size * np.linalg.norm(G, axis=1).max()


def test_without_conflict_nothing_is_added() -> None:
    G, _ = gradients("any", 5, np.random.default_rng(0))
    g = np.linalg.pinv(G) @ np.ones(5)  # at an angle under 90° to every row
    assert solve(G, g).tolist() == [0.0] * 5


def test_the_same_problem_has_the_same_answer() -> None:
    G, g = gradients("much alike", 20, np.random.default_rng(1))
    assert (solve(G, g) == solve(G, g)).all()
