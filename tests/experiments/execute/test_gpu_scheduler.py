"""Runs side by side: none waits for another's slow work, and errors are raised."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from remnant.accelerated import FastestTrainer
from remnant.data import Split
from remnant.errors import RunError
from remnant.experiments.execute import Plan, RunInProgress
from remnant.experiments.execute import run as run_plan
from remnant.experiments.execute.gpu_scheduler import run_side_by_side
from remnant.experiments.settings import resolve
from remnant.methods import Method
from remnant.training import Blocking, Steps, Trainer, Work

CPU = torch.device("cpu")
PICTURES = """
import torch
from remnant.data import Stream

def stream(seed):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(90, 1, 19, 19, generator=g) for _ in range(3)]
    return Stream.from_arrays([(x, x.flatten(1)[:, :3].argmax(1)) for x in x], test=0.3, valid=0.2)
"""


class Random:
    def use(self) -> None:
        pass


class Scripted:
    """A run of `turns` turns that yields `starts[turn]`."""

    def __init__(self, turns: int, starts: dict[int, Blocking] | None = None) -> None:
        self.turns, self.starts, self.random = turns, starts or {}, Random()
        self.taken: list[int] = []

    def work(self) -> Work[None]:
        for turn in range(self.turns):
            self.taken.append(turn)
            yield self.starts.get(turn)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`run_side_by_side` without a GPU and its streams."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    yield lambda *runs: run_side_by_side(runs, CPU)
    gc.freeze()  # for the tests that follow, as in conftest.py


def test_runs_take_turns_until_the_last_has_ended(together: Callable[..., None]) -> None:
    runs = [Scripted(3), Scripted(7), Scripted(0)]
    together(*runs)
    assert [run.taken for run in runs] == [[0, 1, 2], list(range(7)), []]


def test_while_one_run_writes_the_others_continue(together: Callable[..., None]) -> None:
    others_are_done = threading.Event()
    seen: list[list[int]] = []

    def write() -> None:
        assert others_are_done.wait(timeout=20)
        seen.append(list(writing.taken))

    writing, other = Scripted(5, {2: write}), Scripted(50, {49: others_are_done.set})
    together(writing, other)
    assert seen == [[0, 1, 2]]
    assert writing.taken == [0, 1, 2, 3, 4]


def test_an_error_while_writing_stops_the_run_and_is_raised(together: Callable[..., None]) -> None:
    written = []

    def fail() -> None:
        raise RunError("The disk is full")

    failing, other = Scripted(5, {2: fail}), Scripted(10**9, {0: lambda: written.append(1)})
    with pytest.raises(RunError, match="The disk is full"):
        together(failing, other)
    assert failing.taken == [0, 1, 2]
    assert written == [1]


def test_existing_objects_are_hidden_from_the_garbage_collector(together: Callable[..., None]) -> None:
    frozen: list[int] = []
    gc.unfreeze()
    together(Scripted(2, {0: lambda: frozen.append(gc.get_freeze_count())}))
    assert frozen[0] > 10_000
    assert gc.get_freeze_count() == 0


def test_a_run_writes_checkpoints_only_in_the_functions_it_yields(tmp_path: Path) -> None:
    settings = resolve("permuted-digits", "gpm", ("stream.tasks=2", "training.epochs=3", "training.batch=20"))
    asked = Plan(settings, (0,), tmp_path, "cpu", checkpoint_every=1, checkpoint_seconds=0.0)
    folder = asked.folder(0)

    def newest() -> str:
        return max((path.name for path in folder.path.glob("checkpoint-*")), default="")

    last, written = newest(), 0
    for start in RunInProgress(asked, folder, torch.device("cpu"), lambda progress: None).work():
        assert newest() == last
        if start is not None:
            start()
            assert newest() > last
            last, written = newest(), written + 1
    assert written == 2 * 3 + 2  # after each epoch and each task
    assert folder.finished


def test_a_run_says_once_why_it_is_slower_than_it_could_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(self: FastestTrainer, method: Method, train: Split) -> Work[Steps]:
        self.fallback = "an epoch is not one kernel: there is no such kernel."
        return (yield from Trainer.steps(self, method, train))

    monkeypatch.setattr(FastestTrainer, "steps", steps)
    settings = resolve("permuted-digits", "finetune", ("stream.tasks=3", "training.epochs=1", "training.batch=50"))
    notes: list[str] = []
    run_plan(Plan(settings, (0,), tmp_path, "cpu"), lambda progress: notes.append(progress.note))
    assert [note for note in notes if note] == ["an epoch is not one kernel: there is no such kernel."]


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["running", "batch"])
def test_three_seeds_side_by_side_equal_three_seeds_alone(norm: str, tmp_path: Path) -> None:
    """One of the two writes a checkpoint after each epoch, while other runs are captured."""
    (tmp_path / "own.py").write_text(PICTURES)
    few = ("network.name=alexnet", "network.width=2", f"network.norm={norm}", "training.epochs=4", "training.batch=10")
    settings = resolve(f"{tmp_path / 'own.py'}:stream", "gpm", few)

    def losses(root: str, seeds: tuple[int, ...], **how: Any) -> list[list[float]]:
        asked = Plan(settings, seeds, tmp_path / root, "cuda", deterministic=True, checkpoint_seconds=0.0, **how)
        folders = run_plan(asked, lambda progress: None)
        return [[line["loss"] for line in folder.metrics()] for folder in folders]

    together = losses("together", (0, 1, 2), checkpoint_every=1)
    alone = [losses("alone", (seed,), checkpoint_every=0)[0] for seed in (0, 1, 2)]
    assert [len(each) for each in together] == [12, 12, 12]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
