"""CODE-CL with its matrices written out, and the logic of conceptors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from remnant.data import Split
from remnant.methods.codecl import CodeCL
from remnant.methods.parts.conceptors import both, eigenpairs, odds, wide_enough
from remnant.models import Network, build
from small_options import announced

pytestmark = pytest.mark.filterwarnings("ignore:These layers are full")


def network() -> Network:
    return build("mlp", input_shape=(12,), classes=(3, 3, 3), seed=7, hidden=(10, 9)).double()


def data(seed: int) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 12, generator=g, dtype=torch.float64)
    x[:, 6:] *= 0.1
    return Split.of(x, torch.randint(0, 3, (40,), generator=g))


def code_cl(net: Network, **options: Any) -> CodeCL:
    given: dict[str, Any] = {"lr": 0.125, "samples": 1000, "free": 4, "alike": 0.3, "aperture": 1.5, **options}
    return announced(CodeCL(net, **given), *(data(task) for task in range(3)))


def symmetric(values: Tensor, vectors: Tensor) -> Tensor:
    return (vectors * values) @ vectors.T


class SlowCodeCL:
    """All matrices as they stand in the paper, with inverses, for an MLP with heads."""

    def __init__(self, net: Any, lr: float, aperture: float, share: float, floor: float, free: int) -> None:
        self.net, self.lr, self.aperture, self.share, self.floor, self.free = net, lr, aperture, share, floor, free
        self.C = [torch.zeros(layer.in_features, layer.in_features).double() for layer in net.hidden]
        self.own: list[list[tuple[Tensor, Tensor] | None]] = []

    def conceptor(self, X: Tensor) -> Tensor:
        R, a = X.T @ X / len(X), self.aperture
        while True:
            C = R @ torch.linalg.inv(R + a**-2 * torch.eye(len(R)).double())
            if (X @ C).norm() >= self.share * X.norm():
                return C
            a *= 1.1

    def floored(self, C: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh((C + C.T) / 2)
        return symmetric(values * (values >= self.floor), vectors)

    def weights(self, task: int) -> list[Tensor]:
        found = []
        for layer, own in zip(self.net.hidden, self.own[task], strict=True):
            W = layer.weight
            if own is not None:
                U, A = own
                W = W + W @ U @ (A - torch.eye(len(A)).double()) @ U.T
            found.append(W)
        return found

    def inputs(self, x: Tensor, task: int | None) -> list[Tensor]:
        found = []
        for W in [layer.weight for layer in self.net.hidden] if task is None else self.weights(task):
            found.append(x)
            x = F.relu(x @ W.T)
        return [*found, x]

    @torch.no_grad()
    def start(self, x: Tensor, task: int, alike: float) -> None:
        self.own.append([None] * len(self.C))
        for n, X in enumerate(self.inputs(x, None)[:-1] if task else []):
            C, B, eye = self.C[n], self.floored(self.conceptor(X)), torch.eye(len(self.C[n])).double()
            inverses = [torch.linalg.inv(each + 1e-6 * eye) for each in (C, B)]
            values, vectors = torch.linalg.eigh(torch.linalg.inv(inverses[0] + inverses[1] - eye))
            if values.sum() > alike * C.trace():
                self.own[task][n] = vectors.flip(1)[:, : self.free], torch.eye(self.free).double().requires_grad_()

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        own = [layer.weight for layer in self.net.hidden]
        free = [self.net.heads[task].weight, *(pair[1] for pair in self.own[task] if pair)]
        loss = F.cross_entropy(self.net.heads[task](self.inputs(x, task)[-1]), y)
        gradients = torch.autograd.grad(loss, [*own, *free])
        with torch.no_grad():
            for n, (p, g) in enumerate(zip([*own, *free], gradients, strict=True)):
                p -= self.lr * (g - g @ self.C[n] if n < len(own) else g)

    @torch.no_grad()
    def finish(self, x: Tensor, task: int) -> None:
        for n, X in enumerate(self.inputs(x, task)[:-1]):
            eye = torch.eye(len(self.C[n])).double()
            S = sum(C @ torch.linalg.inv(eye - C) for C in (self.C[n], self.conceptor(X)))
            self.C[n] = self.floored(S @ torch.linalg.inv(S + eye))  # type: ignore[operator, arg-type]


def test_it_is_the_algorithm_written_out() -> None:
    ours, theirs = network(), network()
    method, slow = code_cl(ours), SlowCodeCL(theirs, 0.125, 1.5, 0.95, 0.2, 4)
    for task in range(3):
        split = data(task)
        method.start(task)
        slow.start(split.x, task, 0.3)
        for part in torch.arange(40).split(8):
            method.step(split.x[part], split.y[part])
            slow.step(split.x[part], split.y[part], task)
        method.finish(task, split)
        slow.finish(split.x, task)
        for n, layer in enumerate(theirs.hidden):  # type: ignore[arg-type]
            torch.testing.assert_close(ours.hidden[n].weight, layer.weight, rtol=1e-4, atol=1e-5)  # type: ignore[index]
            subspace: Any = method.memory.subspaces[f"hidden.{n}"]
            torch.testing.assert_close(symmetric(subspace.weights, subspace.basis), slow.C[n], rtol=1e-4, atol=1e-5)
    freed = [pair for task in slow.own for pair in task if pair]
    assert len(freed) >= 2
    assert all(not torch.allclose(A, torch.eye(4).double(), atol=1e-3) for _, A in freed)
    sizes = [len(U) * 4 + 16 for U, _ in freed]
    assert method.capacity == 1 + sum(sizes) / sum(p.numel() for p in theirs.parameters())
    assert method.nbytes == method.memory.report().nbytes + 8 * sum(sizes)


def test_switches_free_nothing_or_start_at_random() -> None:
    for options, starts in (({"free": 0}, 0), ({"alike": 1.0}, 0), ({"random_start": True}, 2)):
        method = code_cl(network(), **options)
        method.start(0)
        method.finish(0, data(0))
        method.start(1)
        assert len(method.scales) >= starts
        assert len(method.scales) == 0 or starts
        assert all(bool((D + torch.eye(len(D))).abs().max() < 0.5) for D in method.scales.values())  # A, not I


@st.composite
def conceptors(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Eigenvectors and eigenvalues."""
    size, seed = draw(st.integers(1, 6)), draw(st.integers(0, 10_000))
    values = draw(st.lists(st.floats(0.01, 0.99), min_size=size, max_size=size))
    g = torch.Generator().manual_seed(seed)
    vectors = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=torch.float64))[0]
    return torch.tensor(values).double().sort(descending=True).values, vectors


@given(conceptors(), conceptors())
def test_or_and_and_follow_the_logic_of_conceptors(one: Any, other: Any) -> None:
    size = min(len(one[0]), len(other[0]))
    C, B = (symmetric(*pair)[:size, :size] for pair in (one, other))
    eye = torch.eye(size).double()
    S, T = (X @ torch.linalg.inv(eye - X) for X in (C, B))
    either = symmetric(*eigenpairs(S + T))
    intersection = symmetric(*eigenpairs(both(S, T)))
    # The paper's definition, with ¬C = I − C: C and B = (C⁻¹ + B⁻¹ − I)⁻¹, and C or B = ¬(¬C and ¬B).
    inverse = torch.linalg.inv
    torch.testing.assert_close(intersection, inverse(inverse(C) + inverse(B) - eye), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(either, eye - inverse(inverse(eye - C) + inverse(eye - B) - eye), rtol=1e-6, atol=1e-6)
    for smaller, larger in ((intersection, C), (C, either), (B, either)):
        assert float(torch.linalg.eigvalsh(larger - smaller).min()) > -1e-4


@given(conceptors())
def test_odds_give_the_conceptor_back(pair: tuple[Tensor, Tensor]) -> None:
    values, vectors = eigenpairs(odds(pair[1], pair[0]))
    torch.testing.assert_close(values, pair[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(symmetric(values, vectors), symmetric(*pair), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.999])
def test_the_aperture_is_the_first_that_keeps_enough(share: float) -> None:
    X = torch.randn(30, 5, dtype=torch.float64) * torch.tensor([1, 0.5, 0.2, 0.1, 0.01])
    R = X.T @ X / 30
    found = wide_enough(R, 1.0, share)

    def kept(a: float) -> float:
        return float((X @ R @ torch.linalg.inv(R + a**-2 * torch.eye(5).double())).norm() / X.norm())

    assert kept(found) >= share - 1e-9
    assert found == 1.0 or kept(found / 1.1) < share
