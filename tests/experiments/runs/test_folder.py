"""The run folder: its path, its files, and its errors."""

import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remnant.errors import RunError
from remnant.evaluation import AccuracyMatrix
from remnant.experiments.runs import (
    RunFolder,
    environment,
    find_runs,
    folder_name,
    keep_results,
)
from remnant.experiments.runs.folder import run_path
from remnant.experiments.runs.provenance import _source


@dataclass
class Settings:
    benchmark: str = "pmnist"
    method: str = "gpm"
    digest: str = "0123abcd"
    values: dict[str, Any] = field(default_factory=lambda: {"lr": 0.1, "threshold": {"start": 0.95}})

    def as_dict(self) -> dict[str, Any]:
        return {"benchmark": self.benchmark, "method": self.method, **self.values}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", Settings(), 3)


def test_its_path_is_benchmark_method_digest_seed(run: RunFolder, tmp_path: Path) -> None:
    assert run.path == tmp_path / "runs" / "pmnist" / "gpm" / "0123abcd" / "seed3"
    assert sorted(path.name for path in run.path.iterdir()) == ["environment.json", "settings.json"]
    opened = RunFolder.open(run.path)
    assert (opened.seed, opened.settings) == (3, Settings().as_dict())
    assert (opened.benchmark, opened.method, opened.digest) == ("pmnist", "gpm", "0123abcd")


def test_the_same_settings_find_the_same_folder_as_it_was(run: RunFolder, tmp_path: Path) -> None:
    run.record(task=0)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.path.iterdir()}
    again = RunFolder.create(tmp_path / "runs", Settings(), 3)
    assert again.path == run.path
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.path.iterdir()} == before


def test_the_execution_is_written_before_the_settings(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a run that is killed at any moment can be resumed in the way it was started."""
    written: list[str] = []
    monkeypatch.setattr("remnant.experiments.runs.folder.write_json", lambda path, _: written.append(path.name))
    RunFolder.create(tmp_path / "new", Settings(), 3, execution={"deterministic": True})
    assert written.index("execution.json") < written.index("settings.json")
    RunFolder.create(tmp_path / "runs", Settings(), 3, execution={"deterministic": True})
    assert run.execution() is None  # another process may be at it: whoever has the lock says how


def test_tuples_and_nan_in_settings_are_still_the_same_settings(tmp_path: Path) -> None:
    settings = Settings(values={"betas": (0.9, 0.999), "limit": math.nan, "lr": np.float32(0.5)})
    first = RunFolder.create(tmp_path, settings, 0)
    assert RunFolder.create(tmp_path, settings, 0).path == first.path


def test_other_settings_under_the_same_digest_are_refused(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a run with different settings"):
        RunFolder.create(tmp_path / "runs", Settings(values={"lr": 0.2}), 3)


@given(st.text(min_size=1))
def test_any_name_becomes_one_folder_of_a_safe_name(name: str) -> None:
    folder = folder_name(name)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", folder)
    assert len(folder) <= 64
    assert not folder.endswith(".")
    assert folder_name(folder) == folder


def test_a_users_own_stream_is_named_by_its_file_and_a_hash() -> None:
    names = [folder_name(name) for name in ("/home/ada/x/own.py:stream", "own.py:stream", "../own.py:stream")]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"own\.py-stream-[0-9a-f]{8}", name) for name in names)
    assert run_path("a/b.py:c", "gpm", "d", 1).parts[1:] == ("gpm", "d", "seed1")


def test_opening_a_folder_without_a_run_is_a_clear_error(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"There is no folder .*nowhere"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run: .* A run's folder is called seed<k>"):
        RunFolder.open(run.path / "settings.json")
    with pytest.raises(RunError, match=r"It contains runs, such as .*seed3"):
        RunFolder.open(tmp_path / "runs")
    (run.path / "settings.json").write_text('{"lr": 1}')
    with pytest.raises(RunError, match="it lacks benchmark, method, digest, seed, settings"):
        RunFolder.open(run.path)
    (run.path / "settings.json").write_text('{"lr": ')
    with pytest.raises(RunError, match=r"settings\.json is damaged"):
        RunFolder.open(run.path)


def test_metrics_are_read_as_they_were_recorded(run: RunFolder) -> None:
    assert run.metrics() == []
    run.record(task=0, epoch=1, loss=0.1 + 0.2)
    run.record(task=0, epoch=2, loss=math.inf, acc=np.float32(0.5), steps=np.int64(7), lr=torch.tensor(0.25))
    run.record(task=0, epoch=3, loss=math.nan)
    first, second, third = run.metrics()
    assert first == {"task": 0, "epoch": 1, "loss": 0.1 + 0.2}
    # Strict JSON has no numbers that are not finite.
    assert second == {"task": 0, "epoch": 2, "loss": None, "acc": 0.5, "steps": 7, "lr": 0.25}
    assert third == {"task": 0, "epoch": 3, "loss": None}
    with pytest.raises(TypeError, match="hold numbers, strings"):
        run.record(weights=torch.zeros(3))
    assert len(run.metrics()) == 3


def test_resuming_drops_the_lines_newer_than_the_checkpoint(run: RunFolder) -> None:
    assert run.truncate_metrics() == 0  # nothing there: nothing made
    assert not (run.path / "metrics.jsonl").exists()
    for task in (0, 1):
        for epoch in range(1, 5):
            run.record(task=task, epoch=epoch)
    assert run.truncate_metrics((1, 2)) == 6
    run.record(task=1, epoch=3)
    assert [line["epoch"] for line in run.metrics()] == [1, 2, 3, 4, 1, 2, 3]


@pytest.mark.parametrize("rest", [b'{"ep', b'{"task": 0, "epoch": 2}', b"\0\0\0\0", b"["])
def test_a_half_written_line_is_ignored_and_repaired(run: RunFolder, rest: bytes) -> None:
    run.record(task=0, epoch=0)
    run.record(task=0, epoch=1)
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + rest)
    assert [line["epoch"] for line in run.metrics()] == [0, 1]
    assert path.read_bytes().endswith(rest)  # a reader writes nothing
    run.record(task=0, epoch=2)
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [0, 1, 2]


BAD_LINES = [
    b"\0\0\0",
    b"7",
    b"{}",
    b'{"task": 0}',
    b'{"task": "0", "epoch": 1}',
    b'{"task": 0, "epoch": 1, "loss": 1e999}',
]


@pytest.mark.parametrize("bad", [*BAD_LINES, b'{"a":' * 5000, b'{"task": 0, "epoch": 1, "loss": {}}'])
def test_a_damaged_line_does_not_stop_a_run_from_resuming(run: RunFolder, bad: bytes) -> None:
    path = run.path / "metrics.jsonl"
    first, second = b'{"task": 0, "epoch": 1}\n', b'{"task": 0, "epoch": 2}\n'
    path.write_bytes(first + bad + b"\n" + second + b'{"epoch"')
    assert run.truncate_metrics((0, 9)) == 2
    assert path.read_bytes() == first + second


def test_matrix_ranks_and_result_come_back(run: RunFolder) -> None:
    assert (run.matrix(), run.ranks(), run.result(), run.finished) == (None, None, None, False)
    matrix = AccuracyMatrix(3, [[0.1 + 0.2], [0.9, 1 / 3]])
    run.save_matrix(matrix)
    run.save_ranks({"fc1": [3, 4], "fc2": [1, 0]})
    assert run.matrix() == matrix
    assert run.ranks() == {"fc1": [3, 4], "fc2": [1, 0]}
    assert not run.finished
    run.save_result({"acc": np.float64(0.5), "bwt": math.nan, "seconds": {"train": 1.5}})
    result = run.result()
    assert run.finished
    assert result is not None
    assert result["seconds"] == {"train": 1.5}
    assert result["bwt"] is None


@pytest.mark.parametrize(
    ("name", "ask"), [("accuracy.csv", "matrix"), ("ranks.json", "ranks"), ("result.json", "result")]
)
def test_a_damaged_file_is_named(run: RunFolder, name: str, ask: str) -> None:
    (run.path / name).write_bytes(b"\xff\x00")
    with pytest.raises(RunError, match=rf"{re.escape(name)} is damaged"):
        getattr(run, ask)()


def test_checkpoints_go_when_the_run_is_finished(run: RunFolder) -> None:
    run.save_checkpoint({"n": 1})
    assert run.load_checkpoint() == ({"n": 1}, None)
    run.clear_checkpoints()
    assert run.load_checkpoint() == (None, None)


def test_a_run_is_locked_once_and_free_afterwards(run: RunFolder) -> None:
    with run.lock():
        again = RunFolder.open(run.path)
        with pytest.raises(RunError, match=rf"is being written by process {os.getpid()} \(this one\)"), again.lock():
            pass
    with run.lock():
        pass


def test_all_runs_are_found_in_the_order_of_their_seeds(tmp_path: Path) -> None:
    for seed in (10, 2):
        RunFolder.create(tmp_path, Settings(), seed)
    RunFolder.create(tmp_path, Settings(benchmark="own.py:stream"), 0)
    (tmp_path / "pmnist" / "notes.txt").write_text("mine")
    assert [run.seed for run in find_runs(tmp_path)] == [0, 2, 10]
    assert [run.seed for run in find_runs(tmp_path / "pmnist" / "gpm")] == [2, 10]
    one = find_runs(tmp_path)[1]
    assert [run.path for run in find_runs(one.path)] == [one.path]
    assert find_runs(tmp_path / "nowhere") == []


def test_the_small_files_of_a_finished_run_are_kept(run: RunFolder, tmp_path: Path) -> None:
    run.record(task=0, epoch=0)
    run.save_matrix(AccuracyMatrix(1, [[0.5]]))
    run.save_ranks({"fc1": [1]})
    run.save_drift({"fc1": {"edges": [-1, 0, 1], "counts": [2, 3]}})
    run.save_checkpoint({"n": 1})
    with run.lock(), pytest.raises(RunError, match="is not finished"):
        keep_results(run, tmp_path / "results")
    run.save_result({"acc": 0.5, "seconds": {}})
    kept = keep_results(run, tmp_path / "results")
    assert kept == tmp_path / "results" / "pmnist" / "gpm" / "0123abcd" / "seed3"
    names = ["accuracy.csv", "drift.json", "environment.json", "ranks.json", "result.json", "settings.json"]
    assert sorted(path.name for path in kept.iterdir()) == names
    assert all((kept / name).read_bytes() == (run.path / name).read_bytes() for name in names)
    assert keep_results(run, tmp_path / "results") == kept
    assert [found.result() for found in find_runs(tmp_path / "results")] == [{"acc": 0.5, "seconds": {}}]


def test_an_older_copy_is_replaced_as_a_whole(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save_matrix(AccuracyMatrix(1, [[0.5]]))
    run.save_drift({"fc1": {"edges": [-1, 0, 1], "counts": [2, 3]}})
    run.save_result({"acc": 0.5, "seconds": {}})
    kept = keep_results(run, tmp_path / "results")
    (run.path / "drift.json").unlink()  # as in a run of the same settings that was not asked for it
    run.save_result({"acc": 0.25, "seconds": {}})
    with monkeypatch.context() as full:

        def full_disk(path: Path, data: bytes) -> None:
            raise RunError("The disk is full")

        full.setattr("remnant.experiments.runs.find.write", full_disk)
        with pytest.raises(RunError, match="full"):
            keep_results(run, tmp_path / "results")
    assert not (kept / "result.json").exists()  # so that it is not taken for a run
    assert (kept / "accuracy.csv").exists()
    keep_results(run, tmp_path / "results")
    assert not (kept / "drift.json").exists()
    assert [found.result() for found in find_runs(tmp_path / "results")] == [{"acc": 0.25, "seconds": {}}]


def test_keeping_a_run_in_its_own_folder_changes_nothing(run: RunFolder, tmp_path: Path) -> None:
    run.save_result({"acc": 0.5, "seconds": {}})
    before = sorted(path.name for path in run.path.iterdir())
    (tmp_path / "link").symlink_to(run.path.parents[3], target_is_directory=True)
    for root in (run.path.parents[3], tmp_path / "link"):
        assert keep_results(run, root).samefile(run.path)
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_the_environment_names_versions_and_device_and_no_path(run: RunFolder) -> None:
    known = run.environment()
    assert known is not None
    assert known["torch"] == torch.__version__
    assert known["device"]
    assert known["commit"] is None or re.fullmatch("[0-9a-f]{40,64}", known["commit"])
    assert str(Path.home()) not in json.dumps(known)
    assert environment("cpu")["device"] != ""
    assert environment("cuda:7")["device"]  # absent or not: a record does not fail


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _source.cache_clear()
    try:
        assert environment("cpu")["commit"] is None
    finally:
        _source.cache_clear()
