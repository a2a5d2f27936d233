"""The record of the first task's drift, with and without an interruption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remnant.experiments.execute import Plan, Progress, unfinished
from remnant.experiments.execute import one_run as recorded
from remnant.experiments.execute import run as run_plan
from remnant.experiments.runs import RunFolder
from remnant.experiments.settings import resolve

FEW = ("stream.tasks=3", "training.epochs=2", "training.batch=20")
PICTURES = """
import torch
from remnant.data import Stream

def stream(seed):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(90, 1, 19, 19, generator=g) for _ in range(2)]
    return Stream.from_arrays([(x, x.flatten(1)[:, :3].argmax(1)) for x in x], test=0.3, valid=0.2)
"""
ALEXNET = ("network.name=alexnet", "network.width=2", "network.norm=batch", "training.epochs=2", "training.batch=10")


class Cut(Exception):  # noqa: N818  # an end, not an error
    pass


def plan(root: Path, *, method: str = "gpm", drift: bool = True, own: bool = False) -> Plan:
    if own:
        (root.parent / "own.py").write_text(PICTURES)
    settings = resolve(
        f"{root.parent / 'own.py'}:stream" if own else "permuted-digits", method, ALEXNET if own else FEW
    )
    how: dict[str, Any] = {"checkpoint_every": 1, "checkpoint_seconds": 0.0, "deterministic": True}
    return Plan(settings, (0,), root, "cpu", drift=drift, **how)


def run(asked: Plan, until: Callable[[Progress], bool] = lambda _: False) -> tuple[RunFolder, list[str]]:
    notes: list[str] = []

    def watch(progress: Progress) -> None:
        notes.append(progress.note)
        if until(progress):
            raise Cut

    (folder,) = run_plan(asked, watch)
    return folder, notes


def cut(asked: Plan, until: Callable[[Progress], bool]) -> None:
    with pytest.raises(Cut):
        run(asked, until)


def test_recording_the_drift_is_optional_and_changes_no_result(tmp_path: Path) -> None:
    without, _ = run(plan(tmp_path / "without", drift=False))
    asked, notes = run(plan(tmp_path / "with"))
    assert without.drift() is None
    assert (without.path / "accuracy.csv").read_bytes() == (asked.path / "accuracy.csv").read_bytes()
    assert without.ranks() == asked.ranks()
    assert not any(notes)
    drift = asked.drift()
    assert drift is not None
    assert list(drift) == list(asked.ranks() or {}) == ["hidden.0", "hidden.1", "head"]
    for layer, outputs in (("hidden.0", 100), ("hidden.1", 100), ("head", 10)):
        assert sum(drift[layer]["counts"]) == 355 * outputs  # every example of the first task's test set


def test_a_few_examples_of_a_large_set_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "DRIFT_EXAMPLES", 40)
    folder, _ = run(plan(tmp_path))
    assert sum((folder.drift() or {})["head"]["counts"]) == 40 * 10


@pytest.mark.parametrize("method", ["finetune", "multitask", "single-task"])
def test_a_method_that_protects_no_layer_has_none(tmp_path: Path, method: str) -> None:
    folder, notes = run(plan(tmp_path, method=method))
    assert folder.finished
    assert folder.drift() is None
    assert not any(notes)


MOMENTS: dict[str, Callable[[Progress], bool]] = {
    "in the first task": lambda p: p.task == 0 and p.epoch is not None and p.epoch.epoch == 2,
    "after the first task": lambda p: p.task == 0 and bool(p.row),
    "in the second task": lambda p: p.task == 1 and p.epoch is not None and p.epoch.epoch == 2,
    "after the last task": lambda p: p.task == p.tasks - 1 and bool(p.row),
}


@pytest.mark.parametrize("own", [False, True], ids=["one head", "heads, normalised by the batch"])
def test_an_interrupted_run_records_the_same_drift(tmp_path: Path, own: bool) -> None:
    whole, _ = run(plan(tmp_path / "whole", own=own))
    drift = (whole.path / "drift.json").read_bytes()
    assert not any(layer.startswith("heads") for layer in whole.drift() or {})
    for moment, until in MOMENTS.items():
        broken = plan(tmp_path / moment.replace(" ", "-"), own=own)
        cut(broken, until)
        ((resumed,), _) = unfinished(broken.root, "cpu", 1)  # as `remnant resume` goes on: it is told nothing
        folder, notes = run(resumed)
        assert any("resumed at" in note for note in notes), moment
        assert (folder.path / "drift.json").read_bytes() == drift, moment
        for name in ("acc", "bwt", "validation_acc", "validation_bwt"):
            assert (folder.result() or {})[name] == (whole.result() or {})[name], (moment, name)


def test_a_drift_wanted_too_late_is_a_note_and_no_error(tmp_path: Path) -> None:
    cut(plan(tmp_path, drift=False), MOMENTS["in the second task"])
    folder, notes = run(plan(tmp_path))
    assert "the drift is not recorded: the run was started without it, and the first task's network is gone" in notes
    assert folder.finished
    assert folder.drift() is None
