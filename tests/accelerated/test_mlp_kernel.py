"""The GPU kernel's own source, run on a CPU: every thread of every block, with all that could arrive late arriving late."""

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

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ to build it with")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Sizes and flags → the program for them, built once."""

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
    """x, what was kept of it, labels, order, three weights, what remains for two layers (or nothing), rate and loss."""
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
    (SMALL, (True, False)),  # a head for each task, which none projects
    (SMALL, (False, False)),
    ((8, 128, 90, 16, 16), (False, True)),
    ((257, 9, 64, 2, 1), (True, True)),
]


@pytest.mark.parametrize(("sizes", "projects"), CASES, ids=str)
def test_it_takes_the_steps_that_are_written_out(sizes: Sizes, projects: tuple[bool, bool], built: Build) -> None:
    given = example(sizes, projects, 4)
    got = emulated([built(sizes)], given, 4)
    for mine, right in zip(got, obvious(given, sizes[-1]), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-6)


def test_a_run_that_left_the_numbers_does_not_look_like_one_that_learns(built: Build) -> None:
    given = example(SMALL, (True, True), 2)
    given[4][3, 5] = torch.nan
    assert emulated([built(SMALL)], given, 2)[-1].isnan()


def test_no_bit_depends_on_which_block_is_ahead(built: Build) -> None:
    program, given = [built(PMNIST)], example(PMNIST, (True, True), 3)
    one, other = (emulated(program, given, 3, first) for first in (0, 5))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_barriers_order_all_that_threads_share(built: Build) -> None:
    """No barrier between a write and another thread's read or write, and the thread sanitizer ends the program with 66."""
    if shutil.which("setarch") is None:
        pytest.skip("the sanitizer needs memory laid out the old way, which setarch would do")
    try:
        program = built(SMALL, "-fsanitize=thread")
    except subprocess.CalledProcessError:
        pytest.skip("this g++ has no thread sanitizer")
    emulated(["setarch", "-R", program], example(SMALL, (True, True), 3), 3, first=3)
