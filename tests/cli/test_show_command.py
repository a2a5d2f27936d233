"""`remnant show` and `remnant diff`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from remnant.cli import app
from remnant.experiments import Plan, resolve, run
from remnant.experiments.runs import RunFolder, find_runs
from remnant.report.one_run import curve, open_run


def remnant(*words: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "150"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def runs(small_runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_runs, tmp_path / "runs"))


def of(runs: Path, method: str, seed: int = 0) -> RunFolder:
    return next(run for run in find_runs(runs) if (run.method, run.seed) == (method, seed))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def test_show_prints_all_files_of_the_run(small_runs: Path) -> None:
    gpm = of(small_runs, "gpm")
    text = remnant("show", gpm.path).stdout
    assert text.startswith("permuted-digits · gpm · seed 0 · finished\n")
    assert re.search(r"^lr +0\.05 +recipe", text, re.M)
    assert re.search(r"^training\.epochs +1 +changed", text, re.M)
    assert re.search(r"^torch +2\.", text, re.M)
    matrix, ranks, result = gpm.matrix(), gpm.ranks(), gpm.result()
    assert matrix is not None
    assert ranks is not None
    assert result is not None
    assert f"{100 * matrix[1, 0]:6.1f}{100 * matrix[1, 1]:6.1f}" in text
    assert f"{100 * result['acc']:.2f}" in text
    for layer, added in ranks.items():
        assert re.search(rf"^{re.escape(layer)} +{added[0]} +{added[1]} +{sum(added)} +\d+", text, re.M)
    loss = gpm.metrics()[0]["loss"]
    assert f"▁ {loss:.3f} → {loss:.3f}" in text


def test_the_printed_command_makes_the_same_run(small_runs: Path) -> None:
    for folder in find_runs(small_runs):
        (line,) = re.findall(r"^Repeat it with: (.*)$", remnant("show", folder.path).stdout, re.M)
        words = shlex.split(line)
        overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        assert words[:4] == ["remnant", "run", "permuted-digits", folder.method]
        assert resolve("permuted-digits", folder.method, overrides).digest == folder.digest
        assert words[-2:] == ["--seeds", f"{folder.seed},"]


def test_the_command_of_a_method_in_a_file_makes_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from remnant.methods import Finetune\nclass Own(Finetune):\n    '''Its own.'''\n", encoding="utf-8"
    )
    settings = resolve("permuted-digits", "own.py:Own", ["training.epochs=1", "lr=0.02"], "sane")
    folder = RunFolder.create(Path("runs"), settings, 3, execution={"deterministic": True, "tf32": False})
    Path("own.py").unlink()  # a run is shown without its file
    words = shlex.split(open_run(folder.path).command)
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    Path("own.py").write_text(
        "from remnant.methods import Finetune\nclass Own(Finetune):\n    '''Its own.'''\n", encoding="utf-8"
    )
    assert resolve("permuted-digits", "own.py:Own", overrides, "sane").digest == folder.digest
    assert " ".join(words).endswith("--seeds 3, --deterministic --no-tf32")
    assert "--protocol sane" in " ".join(words)


def test_show_warns_of_what_a_reader_should_know(runs: Path) -> None:
    folder = of(runs, "gpm")
    ranks = folder.ranks()
    assert ranks is not None
    folder.save_ranks(ranks | {"hidden.0": [60, 4]})
    change(folder.path / "environment.json", modified=True, before=[{"commit": "abcdef0123456789"}])
    (folder.path / "result.json").unlink()
    folder.record(task=1, epoch=2, loss=None)
    text = remnant("show", folder.path).stdout
    assert "Warning: It is unfinished: 2 of 2 tasks done. remnant resume" in text
    assert "the commit does not identify it" in text
    assert "another version of the code (abcdef012345)" in text
    assert "The memory of hidden.0 is full" in text
    assert "The loss was not finite in task 2." in text
    with folder.lock():
        assert "A process is writing to it; 2 of 2 tasks done." in remnant("show", folder.path).stdout
    change(folder.path / "settings.json", settings=folder.settings | {"stream": {"tasks": 3}})
    assert "the settings were edited after the run had begun" in remnant("show", folder.path).stdout


def test_show_takes_a_folder_with_one_run_and_names_one_of_several(runs: Path) -> None:
    shutil.rmtree(of(runs, "gpm", 1).path)
    assert "gpm · seed 0" in remnant("show", runs / "permuted-digits" / "gpm").stdout
    assert "It contains runs, such as" in remnant("show", runs, code=1).stderr
    assert "There is no folder" in remnant("show", runs / "nowhere", code=1).stderr
    damaged = of(runs, "gpm").path / "result.json"
    damaged.write_text("{", encoding="utf-8")
    assert "result.json is damaged" in remnant("show", damaged.parent, code=1).stderr


def test_diff_lists_settings_code_and_results(runs: Path) -> None:
    gpm, plain = of(runs, "gpm"), of(runs, "finetune", 1)
    change(plain.path / "environment.json", commit="f" * 40)
    text = remnant("diff", gpm.path, plain.path).stdout
    assert re.search(r"^method +gpm +finetune", text, re.M)
    assert re.search(r"^samples +300 +–", text, re.M)
    assert re.search(r"^seed +0 +1", text, re.M)
    assert re.search(rf"^commit +\w+ +{'f' * 40}", text, re.M)
    assert "training.epochs" not in text  # the same in both
    a, b = gpm.result(), plain.result()
    assert a is not None
    assert b is not None
    acc = [f"{100 * x:.2f}" for x in (a["acc"], b["acc"])]
    assert re.search(rf"^ACC % +{acc[0]} +{acc[1]} +[+-]\d", text, re.M)
    assert re.search(r"\d accuracies differ, first after task 1; most by", text)


def test_a_run_does_not_differ_from_its_copy(runs: Path, tmp_path: Path) -> None:
    first = of(runs, "gpm").path
    copy = shutil.copytree(first, tmp_path / "copy")
    text = remnant("diff", first, copy).stdout
    assert "setting: no difference\n\ncode: no difference\n\nresult: no difference" in text
    assert "the same to the last digit, after 2 of 2 tasks" in text


def test_diff_of_runs_that_have_not_got_as_far(tmp_path: Path, small_runs: Path) -> None:
    done = of(small_runs, "gpm")
    matrix = done.matrix()
    assert matrix is not None
    started = RunFolder.create(tmp_path, resolve("permuted-digits", "gpm"), 0)
    assert "they have 2 and 0 tasks" in remnant("diff", done.path, started.path).stdout
    started.save_matrix(type(matrix)(2, [matrix.values[0, :1]]))
    text = remnant("diff", done.path, started.path).stdout
    assert "The same accuracies, as far as both runs have got: 2 and 1 tasks." in text
    assert re.search(r"^ACC % +\d+\.\d+ +– +–", text, re.M)


def test_a_run_without_a_memory_is_shown(tmp_path: Path) -> None:
    settings = resolve("permuted-digits", "multitask", ["stream.tasks=2", "training.epochs=1"])
    (folder,) = run(Plan(settings, (0,), tmp_path, "cpu"))
    text = remnant("show", folder.path).stdout
    assert "Directions added" not in text
    assert re.search(r"^\d+\.\d\d +– +– +– ", text, re.M)  # no BWT: all tasks were learned at once


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0], "▁ 1.0 → 1.0"),
        ([0.0, 7.0, 3.0], "▁█▄ 0.0 → 3.0"),
        ([2.0, None, 1.0], "█ ▁ 2.0 → 1.0"),
        ([None, float("nan")], ""),
        ([], ""),
    ],
)
def test_a_curve_of_letters(values: list[float | None], text: str) -> None:
    assert curve(values, places=1) == text


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    bars, _, ends = curve([float(x) for x in range(1000)], places=0).partition(" ")
    assert len(bars) <= 32
    assert list(bars) == sorted(bars)
    assert ends == "0 → 999"
