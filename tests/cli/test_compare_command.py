"""`remnant compare` and `remnant run` with several methods."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from remnant.cli import app
from remnant.experiments.runs import find_runs

FEW = ["--set", "stream.tasks=2", "--set", "training.epochs=1", "--set", "training.batch=20", "--device", "cpu"]
FEW += ["--parallel", "1"]  # in this process


def remnant(*words: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def runs(small_runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_runs, tmp_path / "runs"))


def accuracies(runs: Path, method: str) -> list[float]:
    return [run.read().result.acc for run in find_runs(runs) if run.method == method]  # type: ignore[union-attr]


def test_the_table_has_mean_and_deviation_of_each_method(small_runs: Path) -> None:
    result = remnant("compare", small_runs)
    assert result.stdout.startswith("permuted-digits (stream.tasks=2, training.batch=20, training.epochs=1)\n")
    for method in ("gpm", "finetune"):
        acc = [100 * x for x in accuracies(small_runs, method)]
        line = next(line for line in result.stdout.splitlines() if line.startswith(method))
        assert f"{fmean(acc):.2f} ± {stdev(acc):.2f}" in line
    assert "* The best, or not significantly different from it" in result.stdout
    assert result.stderr == ""


def test_every_format_has_the_same_figures(small_runs: Path) -> None:
    found = strict(remnant("compare", small_runs, "--json").stdout)
    (comparison,) = found["comparisons"]
    by_method = {each["method"]: each for each in comparison["methods"]}
    assert by_method["gpm"]["acc"]["mean"] == pytest.approx(fmean(accuracies(small_runs, "gpm")))
    assert by_method["gpm"]["seeds"] == [0, 1]
    assert sum(each["acc"]["difference"] is None for each in by_method.values()) == 1  # the best
    lines = list(csv.DictReader(io.StringIO(remnant("compare", small_runs, "--csv").stdout)))
    assert [line["method"] for line in lines] == [each["method"] for each in comparison["methods"]]
    assert [float(line["acc"]) for line in lines] == [each["acc"]["mean"] for each in comparison["methods"]]
    shown = f"{100 * by_method['gpm']['acc']['mean']:.2f} ± "
    assert shown in remnant("compare", small_runs, "--markdown").stdout
    assert shown.replace("±", r"$\pm$") in remnant("compare", small_runs, "--latex").stdout


def test_output_writes_tables_and_pictures(small_runs: Path, tmp_path: Path) -> None:
    result = remnant("compare", small_runs, "-o", tmp_path / "out")
    endings = sorted(path.suffix for path in (tmp_path / "out").iterdir())
    assert endings == [".csv", ".json", ".md", ".pdf", ".png", ".svg", ".tex"]
    assert result.stderr.count("Wrote ") == 7
    picture = next((tmp_path / "out").glob("*.svg")).read_text(encoding="utf-8")
    assert "GPM" in picture
    assert "Fine-tuning" in picture
    strict((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))


def test_damaged_unfinished_and_repeated_runs_are_left_out_by_name(runs: Path) -> None:
    first, second, *_ = (run.path for run in find_runs(runs))
    (first / "accuracy.csv").write_text("[rot]", encoding="utf-8")
    (second / "result.json").unlink()
    last = find_runs(runs)[-1].path
    shutil.copytree(last, last.with_name("seed1 (copy)"))
    result = remnant("compare", runs)
    assert re.search(r"Left out: permuted-digits/finetune/.*/seed0: accuracy.csv is damaged", result.stderr)
    assert "Left out: 1 unfinished run; remnant resume continues it." in result.stderr
    assert "repeats the settings and the seed" in result.stderr
    assert "finetune" not in result.stdout


def test_what_cannot_be_compared_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    assert "choose one" in remnant("compare", runs, "--csv", "--json", code=1).stderr
    assert "Did you mean 'permuted-digits'?" in remnant("compare", runs, "--benchmark", "permuted", code=1).stderr
    assert "is not a folder" in remnant("compare", tmp_path / "nowhere", code=1).stderr
    matrices = {run.path / "accuracy.csv": (run.path / "accuracy.csv").read_bytes() for run in find_runs(runs)}
    for path in matrices:
        path.write_bytes(b"")
    damaged = remnant("compare", runs, code=1).stderr
    assert re.search(r"no run that can be compared\. .*accuracy\.csv is damaged.* remnant clean removes", damaged)
    for path, content in matrices.items():
        path.write_bytes(content)
        path.with_name("result.json").unlink()
    assert "contains no finished run to compare" in remnant("compare", runs, code=1).stderr


def test_several_methods_run_one_after_another_and_end_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own, mine.py").write_text(
        "from remnant.methods import Finetune\nclass Own(Finetune):\n    '''A method in a file.'''\n", encoding="utf-8"
    )
    result = remnant("run", "permuted-digits", "finetune, gpm,finetune", *FEW)
    assert [run.method for run in find_runs(Path("runs"))] == ["finetune", "gpm"]
    assert result.stderr.startswith("permuted-digits\nfinetune, seed 0: task 1/2")
    assert re.findall(r"^(\w+), seed 0: .*done", result.stderr, re.M) == ["finetune", "gpm"]
    assert re.search(r"^gpm +1 ", result.stdout, re.M)
    assert re.search(r"^finetune +1 ", result.stdout, re.M)
    assert "? One seed has no interval." in result.stdout
    remnant("run", "permuted-digits", "own, mine.py:Own", *FEW)  # one file, with a comma in its name
    Path("own.py").write_bytes(Path("own, mine.py").read_bytes())
    assert "own.py:Own" in remnant("run", "permuted-digits", "gpm,own.py:Own", *FEW, "-q").stdout


def test_a_wrong_name_among_several_stops_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'ewc'?" in remnant("run", "permuted-digits", "gpm,ewcc", *FEW, code=1).stderr
    assert "No method called ''" in remnant("run", "permuted-digits", "gpm,", *FEW, code=1).stderr
    assert not Path("runs").exists()


def test_a_method_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = remnant("run", "permuted-digits", "gpm,finetune", *FEW, "--set", "lr=10", "-q", code=1)
    assert result.stderr.count("Try a lower lr.") == 1  # GPM's
    assert [run.method for run in find_runs(Path("runs")) if run.finished] == ["finetune"]
    assert "finetune" in result.stdout
