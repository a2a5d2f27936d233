"""Runs the GPU kernel's source on a CPU, with every thread of every block, and lets every copy arrive as late as it may."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from remnant.accelerated.fused_mlp import CLUSTER, SOURCE

EMULATED = Path(__file__).with_name("emulated")
Sizes = tuple[int, int, int, int, int]  # inputs, hidden units, hidden units, classes, batch
Build = Callable[..., str]
NAMES = ("INPUTS", "HIDDEN1", "HIDDEN2", "CLASSES", "BATCH")
PMNIST: Sizes = (784, 100, 100, 10, 10)
SMALL: Sizes = (33, 17, 25, 3, 5)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds the program for given sizes and flags, once each."""

    @cache
    def build(sizes: Sizes, *flags: str) -> str:
        made = str(tmp_path_factory.mktemp("emulated") / "train_mlp")
        macros = [f"-D{name}={value}" for name, value in zip(NAMES, sizes, strict=True)]
        macros += [f"-DCLUSTER={CLUSTER}", f"-DALIGNED={int(sizes[0] % 4 == 0)}"]
        where = [f"-I{EMULATED}", f"-I{SOURCE.parent}", str(EMULATED / "train_mlp.cpp"), "-o", made]
        subprocess.run(["g++", "-std=c++17", "-O1", "-w", *flags, *macros, *where], check=True, capture_output=True)
        return made

    return build


def example(sizes: Sizes, projects: tuple[bool, bool], steps: int) -> list[Tensor]:
    """x, the projected x, labels, order, three weights, two projections (or empty), learning rate and loss."""
    inputs, hidden1, hidden2, classes, batch = sizes
    torch.manual_seed(1)
    x, y = torch.randn(40, inputs), torch.randint(0, classes, (40,))
    kept = x @ remaining(inputs)
    weights = [
        torch.randn(out, size) / size**0.5 for out, size in ((hidden1, inputs), (hidden2, hidden1), (classes, hidden2))
    ]
    left = [
        remaining(size) if there else torch.empty(0) for size, there in zip((hidden1, hidden2), projects, strict=True)
    ]
    order = torch.randint(0, 40, (steps * batch,))
    return [x, kept, y, order, *weights, *left, torch.tensor(0.3), torch.tensor(0.25)]


def remaining(size: int) -> Tensor:
    basis = torch.linalg.qr(torch.randn(size, max(1, size // 3)))[0]
    return torch.eye(size) - basis @ basis.T


def emulated(program: list[str], given: list[Tensor], steps: int, first: int = 0) -> list[Tensor]:
    words = [str(len(given[0])), str(steps), *(str(int(len(left) > 0)) for left in given[7:9]), str(first)]
    done = subprocess.run(
        [*program, *words], input=b"".join(each.contiguous().numpy().tobytes() for each in given), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[:2000]
    after = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32)
    w1, w2, w3, loss = after.split([*(weight.numel() for weight in given[4:7]), 1])
    return [new.view_as(old) for new, old in zip((w1, w2, w3), given[4:7], strict=True)] + [loss[0]]


def obvious(given: list[Tensor], batch: int) -> list[Tensor]:
    x, kept, y, order, w1, w2, w3, p2, p3, lr, loss = (t.double() if t.is_floating_point() else t for t in given)
    for rows in order.split(batch):
        h1 = (x[rows] @ w1.T).relu()
        h2 = (h1 @ w2.T).relu()
        scores = h2 @ w3.T
        loss = loss + torch.nn.functional.cross_entropy(scores, y[rows])
        d3 = (scores.softmax(1) - torch.eye(len(w3))[y[rows]]) / batch
        d2 = (d3 @ w3) * (h2 > 0)
        d1 = (d2 @ w2) * (h1 > 0)
        w3 = w3 - lr * d3.T @ (h2 @ p3 if len(p3) else h2)
        w2 = w2 - lr * d2.T @ (h1 @ p2 if len(p2) else h1)
        w1 = w1 - lr * d1.T @ kept[rows]
    return [w1, w2, w3, loss]


CASES = [
    (PMNIST, (True, True)),
    (SMALL, (True, True)),
    (SMALL, (True, False)),  # a head per task is not projected
    (SMALL, (False, False)),
    ((8, 128, 90, 16, 16), (False, True)),
    ((257, 9, 64, 2, 1), (True, True)),
]


@pytest.mark.parametrize(("sizes", "projects"), CASES, ids=str)
def test_it_takes_the_same_steps_as_plain_torch(sizes: Sizes, projects: tuple[bool, bool], built: Build) -> None:
    given = example(sizes, projects, 4)
    got = emulated([built(sizes)], given, 4)
    for mine, right in zip(got, obvious(given, sizes[-1]), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-6)


def test_nan_in_the_weights_makes_the_loss_nan(built: Build) -> None:
    given = example(SMALL, (True, True), 2)
    given[4][3, 5] = torch.nan
    assert emulated([built(SMALL)], given, 2)[-1].isnan()


def test_the_result_does_not_depend_on_the_order_of_blocks(built: Build) -> None:
    program, given = [built(PMNIST)], example(PMNIST, (True, True), 3)
    one, other = (emulated(program, given, 3, first) for first in (0, 5))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_barriers_separate_all_conflicting_accesses(built: Build) -> None:
    """The thread sanitizer ends the program with 66 if no barrier separates a write from another thread's access."""
    if shutil.which("setarch") is None:
        pytest.skip("the sanitizer needs setarch to switch address randomisation off")
    try:
        program = built(SMALL, "-fsanitize=thread")
    except subprocess.CalledProcessError:
        pytest.skip("this g++ has no thread sanitizer")
    emulated(["setarch", "-R", program], example(SMALL, (True, True), 3), 3, first=3)
