"""`remnant sweep`, and the figures that `remnant report` makes of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner, Result

from remnant.cli import app
from remnant.experiments.runs import find_runs

FEW = ["--set", "stream.tasks=3", "--set", "training.epochs=2", "--set", "training.batch=20", "--device", "cpu"]
FEW += ["--parallel", "1"]  # in this process
SWEEP = ["sweep", "permuted-digits", "gpm", "--over", "threshold.start=0.6,0.99", *FEW]


def remnant(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMNANT_DATA", str(tmp_path / "store"))
    return tmp_path


def spread(histogram: dict[str, list[float]]) -> float:
    middles = [(a + b) / 2 for a, b in zip(histogram["edges"], histogram["edges"][1:], strict=False)]
    squares = sum(count * middle**2 for count, middle in zip(histogram["counts"], middles, strict=True))
    return float((squares / sum(histogram["counts"])) ** 0.5)


def test_from_a_sweep_to_its_figures(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    result = remnant(*SWEEP)
    assert "permuted-digits · gpm\nthreshold.start=0.6, seed 0: task 1/3" in result.stderr
    title, headings, *rows = [re.split(r"  +", line.strip()) for line in result.stdout.splitlines()]
    assert title == ["permuted-digits · gpm"]
    assert headings == [
        "threshold.start",
        "seeds",
        "validation ACC, %",
        "validation BWT",
        "ACC, %",
        "BWT",
        "memory, kB",
    ]
    assert [row[:2] for row in rows] == [["0.6", "1"], ["0.99", "1"]]
    runs = {run.settings["options"]["threshold"]["start"]: run for run in find_runs(folder / "runs")}
    for row, eps in zip(rows, (0.6, 0.99), strict=True):
        result_file = runs[eps].result() or {}
        assert row[4:6] == [f"{100 * result_file['acc']:.2f}", f"{result_file['bwt']:.3f}"]
    loose, tight = (runs[eps].drift() or {} for eps in (0.6, 0.99))
    for layer in ("hidden.0", "hidden.1", "head"):
        assert spread(tight[layer]) < spread(loose[layer])  # the paper's finding

    again = remnant(*SWEEP)
    assert again.stdout == result.stdout
    assert again.stderr.count("seed 0: already finished") == again.stderr.count("seed 0: ") == 2  # nothing was run

    remnant("keep", "results")
    assert all(run.drift() for run in find_runs(folder / "results"))
    remnant("report", "results", "-o", "report")
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "no two runs that differ in ε alone" not in page
    drawn = [path.name for path in (folder / "report" / "figures").glob("interference-*.svg")]
    assert sorted(name.rsplit("-", 1)[1] for name in drawn) == ["head.svg", "hidden.0.svg", "hidden.1.svg"]
    assert list((folder / "report" / "figures").glob("threshold-*.svg"))


def test_a_value_that_fails_does_not_keep_the_others_from_running(folder: Path) -> None:
    result = remnant("sweep", "permuted-digits", "gpm", "--over", "lr=10,0.05", *FEW, "--quiet", code=1)
    assert result.stderr.startswith("Error: ")
    assert "whether training diverged" in result.stderr
    rows = [re.split(r"  +", line.strip()) for line in result.stdout.splitlines()[2:]]
    assert rows[0] == ["10", "0", *["not finished"] * 5]
    assert rows[1][:2] == ["0.05", "1"]


def test_an_older_run_is_not_repeated_and_its_missing_drift_is_noted(folder: Path) -> None:
    remnant("run", "permuted-digits", "gpm", "--set", "threshold.start=0.6", *FEW, "-q")
    (path,) = (run.path.relative_to(folder) for run in find_runs(folder / "runs"))
    before = json.loads((path / "result.json").read_text())
    result = remnant(*SWEEP, "--quiet")
    assert f"Note: {path} was run before without recording its drift" in result.stderr
    assert json.loads((path / "result.json").read_text()) == before


def test_a_search_prints_the_best_trials_and_the_test_accuracy_of_one(folder: Path) -> None:
    pytest.importorskip("optuna")
    words = ["sweep", "permuted-digits", "finetune", "--over", "lr=0.001..0.1:log", "--search", "3", *FEW]
    result = remnant(*words)
    _, headings, *rows, best, command, place = result.stdout.splitlines()
    assert headings.split() == ["lr", "validation", "ACC,", "%"]
    scores = [float(row.split()[1]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    (run,) = (run for run in find_runs(folder / "runs") if run.settings["options"]["lr"] == float(rows[0].split()[0]))
    assert f"ACC {100 * (run.result() or {})['acc']:.2f} %" in best
    assert command == f"--set lr={rows[0].split()[0]}"
    assert (folder / place.removeprefix("in ")).is_file()
    assert re.match(r"permuted-digits · finetune\nlr=0\.\d+, seed 0: task 1/3", result.stderr)
    assert remnant(*words, "-q").stdout == result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["permuted-digit", "gpm", "--over", "lr=1"], "No benchmark called 'permuted-digit'"),
        (["permuted-digits", "gpm", "--over", "lr=0.1,0.1"], "Give each value once."),
        (["permuted-digits", "gpm", "--over", "lr=0.1", "--device", "gpu"], "--device gpu: there is no such device."),
        (["permuted-digits", "gpm", "--over", "lr=0.1", "--seeds", "0"], "For the single seed 0, write --seeds 1."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_is_shown_once_and_nothing_is_run(folder: Path, words: list[str], says: str) -> None:
    result = remnant("sweep", *words, code=1)
    assert result.stderr.startswith("Error: ")
    assert says in result.stderr
    assert result.stderr.count("Error:") == 1
    assert result.stdout == ""
    assert not (folder / "runs").exists()
    assert "Missing option '--over'" in remnant("sweep", "permuted-digits", "gpm", code=2).output


def test_several_methods_are_refused_in_a_sentence() -> None:
    assert "sweep takes one method" in remnant("sweep", "permuted-digits", "gpm,ewc", "--over", "lr=0.1", code=1).stderr
