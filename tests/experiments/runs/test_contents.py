"""Reading a run folder: typed values, and an error that names the file if something is wrong."""

from math import nan
from pathlib import Path
from typing import Any

import pytest

from remnant.errors import RunError
from remnant.evaluation import AccuracyMatrix
from remnant.experiments import find_runs, resolve
from remnant.experiments.runs import DriftHistogram, RunFolder, RunResult

RESULT = {"acc": 0.5, "bwt": nan, "learning_accuracy": 0.75, "seconds": {"train": 2}, "capacity": 1.0}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path, resolve("permuted-digits", "gpm"), 0)
    run.save_matrix(AccuracyMatrix(2, [[1.0], [0.25, 0.75]]))
    run.save_result(RESULT)
    return run


def test_a_whole_run_is_read_as_typed_values(run: RunFolder) -> None:
    run.save_ranks({"fc1": [2, 1]})
    run.save_drift({"fc1": {"edges": [0, 1, 2], "counts": [3, 4]}})
    run.record(task=0, epoch=1, loss=0.5)
    found = run.read()
    assert found.result == RunResult(0.5, None, 0.75, {"train": 2.0}, 1.0, None)
    assert found.digest == run.digest
    assert found.ranks == {"fc1": [2, 1]}
    assert found.drift == {"fc1": DriftHistogram((0.0, 1.0, 2.0), (3.0, 4.0))}
    assert found.metrics == [{"task": 0, "epoch": 1, "loss": 0.5}]
    assert found.environment["torch"]


def test_a_run_without_a_result_is_unfinished(tmp_path: Path) -> None:
    found = RunFolder.create(tmp_path, resolve("permuted-digits", "gpm"), 0).read()
    assert (found.matrix, found.result, found.ranks, found.drift) == (None, None, {}, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acc": 0.6}, "says ACC 0.6000, but accuracy.csv gives 0.5000"),
        ({"acc": 50.0}, "acc is 50.0, not a number from 0 to 1"),
        ({"acc": None}, "acc is None, not a number"),
        ({"bwt": "none"}, "bwt is 'none', not a number"),
        ({"capacity": True}, "capacity is True, not a number"),
        ({"seconds": 3.0}, "seconds is 3.0"),
    ],
)
def test_a_result_that_cannot_be_is_refused(run: RunFolder, change: dict[str, Any], message: str) -> None:
    run.save_result({**RESULT, **change})
    with pytest.raises(RunError, match="seed0/result.json") as error:  # noqa: RUF043
        run.read()
    assert message in str(error.value)


def test_a_result_needs_its_matrix(run: RunFolder) -> None:
    (run.path / "accuracy.csv").unlink()
    with pytest.raises(RunError, match="missing or incomplete"):
        run.read()


def test_edited_settings_have_another_digest(run: RunFolder) -> None:
    file = run.path / "settings.json"
    file.write_text(file.read_text().replace('"lr": 0.05', '"lr": 0.5'))
    (edited,) = find_runs(run.path)
    assert edited.digest == run.digest != edited.read().digest


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"seed": 0', '"seed": "0"', "seed is '0', not a whole number"),
        ('"protocol": "paper"', '"protocol": 3', "protocol is 3, not a word"),
        (
            '"method": "gpm",\n  "seed"',
            '"method": "ewc",\n  "seed"',
            "method is 'ewc', but 'gpm' among the settings",
        ),
    ],
)
def test_settings_of_the_wrong_form_are_refused(run: RunFolder, old: str, new: str, message: str) -> None:
    file = run.path / "settings.json"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(RunError, match=message):
        find_runs(run.path)
