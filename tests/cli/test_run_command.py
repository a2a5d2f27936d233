"""`remnant run`, `resume`, `list`, `reproduce`, `keep` and `demo`: their output and exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from remnant.cli import app
from remnant.cli import demo as demonstration
from remnant.cli.runs import parse_seeds
from remnant.data import DataError
from remnant.errors import UserError
from remnant.evaluation import AccuracyMatrix
from remnant.experiments.runs import RunFolder, find_runs
from remnant.experiments.settings import recipe, resolve

runner = CliRunner()
FEW = ["--set", "stream.tasks=2", "--set", "training.epochs=1", "--set", "training.batch=20", "--device", "cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, without prepared datasets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMNANT_DATA", str(tmp_path / "store"))
    return tmp_path


def remnant(*words: str, code: int = 0) -> Any:
    result = runner.invoke(app, list(words))
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


# --- run, resume ------------------------------------------------------------------------------------------------------


def test_run_shows_progress_and_prints_the_matrix(folder: Path) -> None:
    result = remnant("run", "permuted-digits", "gpm", *FEW)
    assert re.search(
        r"seed 0: task 1/2  epoch 1/1  loss \d\.\d+  accuracy mean test \d+\.\d %  steps/s [\d,]+", result.stderr
    )
    assert "epoch done" in result.stderr
    assert result.stderr.startswith("permuted-digits · gpm\nseed 0: ")  # a log may hold several
    (run,) = find_runs(folder / "runs")
    matrix = run.matrix()
    assert matrix is not None
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["after", "1", "2"] in rows
    assert ["2", *(f"{100 * value:.1f}" for value in matrix.values[1])] in rows
    assert f"ACC {100 * matrix.values[1].mean():.2f} %" in result.stdout
    assert f"The results are in {run.path.parent.relative_to(folder)}" in result.stdout
    again = remnant("run", "permuted-digits", "gpm", *FEW)
    title, note = again.stderr.splitlines()
    assert title == "permuted-digits · gpm"
    assert re.match(r"seed 0: already finished \(.*\); remove runs/.*seed0 to run it again", note)
    assert again.stdout == result.stdout
    assert remnant("run", "permuted-digits", "gpm", *FEW, "--quiet").stderr == ""


def test_another_optimizer_with_the_recipes_lr_is_noted() -> None:
    note = "adamw uses lr=0.05, which was chosen for another optimizer. Change it with --set lr=…"
    adamw = ("run", "permuted-digits", "finetune", *FEW, "--set", "optimizer=adamw")
    assert note in remnant(*adamw).stderr
    assert "Note" not in remnant(*adamw, "--set", "lr=0.001").stderr
    assert "Note" not in remnant("run", "permuted-digits", "wsn", *FEW).stderr  # its recipe has chosen Adam and a rate


def test_quiet_prints_the_result_alone() -> None:
    result = remnant("run", "permuted-digits", "finetune", *FEW, "--quiet")
    assert result.stderr == ""
    first, *rest = result.stdout.splitlines()
    assert re.fullmatch(r"ACC \d+\.\d\d %   BWT [+-]\d\.\d{3}   \d+ s per seed, 1 seed", first)
    assert rest == [rest[0]]
    assert rest[0].startswith("The results are in runs")


def test_two_seeds_have_a_mean_and_a_deviation(folder: Path) -> None:
    for seed, acc in ((0, 0.5), (1, 0.7)):
        run = RunFolder.create(folder / "runs", resolve("pmnist", "gpm"), seed)
        run.save_matrix(AccuracyMatrix(1, [[acc]]))
        run.save_result({"acc": acc, "bwt": -acc / 10, "seconds": {"train": 2.0, "evaluate": 1.0}, "capacity": 1.0})
    result = remnant("run", "pmnist", "gpm", "--seeds", "2", "--device", "cpu")  # finished: nothing is run
    assert "ACC 60.00 ± 14.14 %   BWT -0.060 ± 0.014   3 ± 0 s per seed, 2 seeds" in result.stdout
    assert "paper: ACC 93.91 %   BWT -0.03" in result.stdout


def test_a_wide_matrix_is_never_cut_short(folder: Path) -> None:
    run = RunFolder.create(folder / "runs", resolve("cifar100-superclass", "gpm"), 0)
    run.save_matrix(AccuracyMatrix(20, [[0.123] * (t + 1) for t in range(20)]))
    run.save_result({"acc": 0.123, "bwt": 0.0, "seconds": {"train": 2.0}, "capacity": 1.0})
    result = remnant("run", "cifar100-superclass", "gpm", "--device", "cpu")
    assert "…" not in result.stdout
    assert len(re.findall(r"12\.3\b", result.stdout)) == 210


def test_a_users_own_stream(folder: Path) -> None:
    (folder / "own.py").write_text(
        "import torch\nfrom remnant.data import Stream\n"
        "stream = Stream.from_arrays([(torch.randn(50, 4), torch.arange(50) % 2) for _ in range(2)])\n"
    )
    result = remnant("run", "own.py:stream", "gpm", "--set", "training.epochs=1", "--device", "cpu")
    assert "ACC" in result.stdout


def test_data_on_disk_needs_no_python_file(folder: Path) -> None:
    rng = np.random.default_rng(0)
    command = ("run", "data/points.npz", "gpm", "--set", "training.epochs=1", "--device", "cpu")
    (folder / "data").mkdir()
    np.savez(folder / "data/points.npz", x=rng.normal(size=(40, 4)), y=np.arange(40) % 4)
    assert "Say how many tasks they make" in remnant(*command, code=1).stderr
    assert "Did you mean 'stream.tasks'?" in remnant(*command, "--set", "stream.taks=2", code=1).stderr
    assert "For the folder of that name, write data/." in remnant("run", "data", "gpm", code=1).stderr
    assert "ACC" in remnant(*command, "--set", "stream.tasks=2").stdout
    assert "already finished" in remnant(*command, "--set", "stream.tasks=2").stderr
    np.savez(folder / "data/points.npz", x=rng.normal(size=(40, 4)), y=np.arange(40) % 4)
    assert (
        "was made with another version of data/points.npz"
        in remnant(*command, "--set", "stream.tasks=2", code=1).stderr
    )


def test_resume_says_when_there_is_nothing_to_do(folder: Path) -> None:
    remnant("run", "permuted-digits", "finetune", *FEW)
    assert "Nothing to resume in runs: every run is finished." in remnant("resume", "runs").stdout
    assert "There is no folder nowhere." in remnant("resume", "nowhere", code=1).stderr
    (folder / "empty").mkdir()
    assert "empty contains no run" in remnant("resume", "empty", code=1).stderr


def test_resume_starts_a_run_without_a_checkpoint(folder: Path) -> None:
    overrides = [word for word in FEW if "=" in word]
    run = RunFolder.create(folder / "runs", resolve("permuted-digits", "finetune", overrides), 4)
    result = remnant("resume", "runs", "--device", "cpu")
    assert result.stderr.startswith("Resuming 1 run in runs.\n")
    assert "ACC" in result.stdout
    assert run.finished


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "permuted-digit", "gpm"], "No benchmark called 'permuted-digit'. Did you mean 'permuted-digits'?"),
        (["run", "permuted-digits", "gpmm"], "No method called 'gpmm'. Did you mean 'gpm'?"),
        (["run", "permuted-digits", "gpm", "--set", "thresold=0.9"], "Did you mean 'threshold'?"),
        (["run", "permuted-digits", "gpm", "--set", "lr=-1"], "lr takes a number above 0"),
        (["run", "permuted-digits", "gpm", "--set", "epochs=1"], "Did you mean 'training.epochs'?"),
        (["run", "permuted-digits", "gpm", "--set", "lr"], "expected key=value"),
        (["run", "permuted-digits", "gpm", "--protocol", "insane"], "--protocol insane: write paper or sane"),
        (
            ["run", "permuted-digits", "gpm", "--steps", "fast"],
            "--steps fast: there is no such kind of steps. Use auto, captured",
        ),
        (["list", "settings", "gpmm"], "No method called 'gpmm'. Did you mean 'gpm'?"),
        (["run", "permuted-digits", "gpm", "--device", "gpu"], "--device gpu: there is no such device"),
        (["run", "permuted-digits", "gpm", "--on", "rai"], "--on rai: there is no such place. Did you mean 'ray'?"),
        (["sweep", "permuted-digits", "gpm", "--over", "lr=0.1..1.0"], "0.1..1.0 is a range. Add --search 50"),
        (["run", "permuted-digits", "gpm", "--device", "meta"], "--device meta: there is no such device"),
        (["run", "permuted-digits", "gpm", "--seeds", "none"], "--seeds none: write how many (5), or which (1,3)."),
        (["run", "permuted-digits", "gpm", "--seeds", "0"], "For the single seed 0, write --seeds 1."),
        (["run", "permuted-digits", "gpm", "--set", "network.name=alexnet"], "AlexNet cannot take images of 8×8"),
        (
            ["run", "permuted-digits", "gpm", "--set", "lr=10", *FEW, "--quiet"],
            "whether training diverged. Try a lower lr.",
        ),
        (["run", "nowhere.py:stream", "gpm"], "There is no file nowhere.py."),
        (["run", "pmnist", "gpm"], "mnist"),  # its data is not here
        (["reproduce", "table9"], "No table called 'table9'. Did you mean"),
        (["reproduce", "table1a", "--methods", "gpmm"], "table1a has no method 'gpmm'. Did you mean 'gpm'?"),
        (["reproduce", "table1a", "--benchmarks", "pmnis"], "Did you mean 'pmnist'?"),
        (["list", "settings", "gpmm"], "Did you mean 'gpm'?"),
        (["list", "settings", "gpm", "--benchmark", "pmnis"], "Did you mean 'pmnist'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_is_one_sentence_and_exit_code_1(words: list[str], says: str) -> None:
    result = remnant(*words, code=1)
    assert says in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stdout == ""


def test_wrong_usage_has_exit_code_2() -> None:
    assert "No such command" in remnant("runn", code=2).output
    assert "Missing argument" in remnant("run", code=2).output
    assert remnant("run", "permuted-digits", "gpm", "--checkpoint-every", "-1", code=2)


def test_a_file_instead_of_the_folder_of_runs(folder: Path) -> None:
    (folder / "runs").write_text("mine")
    result = remnant("run", "permuted-digits", "gpm", *FEW, code=1)
    assert "needs a folder where there is a file" in result.stderr
    assert (folder / "runs").read_text() == "mine"


def test_an_interrupt_has_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("remnant.experiments.execute.launch.Job.run", interrupted)
    assert "Interrupted. Finished tasks are kept" in remnant("run", "permuted-digits", "gpm", *FEW, code=130).stderr


# --- list -------------------------------------------------------------------------------------------------------------


def test_list_methods_benchmarks_models(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = remnant("list", "methods").stdout
    assert all(name in methods for name in ("gpm", "finetune", "multitask", "single-task"))
    assert "Averaged GEM (Chaudhry et al., 2019)" in " ".join(methods.split())
    benchmarks = remnant("list", "benchmarks").stdout
    assert re.search(r"^permuted-digits +ready", benchmarks, re.MULTILINE)
    assert re.search(r"^pmnist +needs mnist", benchmarks, re.MULTILINE)
    models = remnant("list", "models").stdout
    assert all(name in models for name in ("mlp", "alexnet", "lenet", "resnet18"))


def test_the_list_mentions_how_a_recipe_differs_from_the_benchmark() -> None:
    assert recipe("five-datasets").stream["fourth"] == "as-published"
    head, *lines = remnant("list", "benchmarks").stdout.splitlines()
    column = head.index("what it is")
    said = " ".join(line[column:].strip() for line in lines)  # over as many lines as the width asks for
    assert "Fashion-MNIST (the recipe: MNIST again, as published) and notMNIST" in said


def test_list_settings_shows_what_set_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    keys = remnant("list", "settings", "gpm", "--benchmark", "pmnist").stdout
    for key in ("lr", "samples", "threshold", "rank_rule", "training.epochs", "network.hidden", "stream.tasks"):
        assert re.search(rf"^{re.escape(key)} ", keys, re.MULTILINE), key
    assert "pmnist.toml" in keys
    assert "[100, 100]" in keys
    assert re.search(r"^lr ", remnant("list", "settings", "finetune").stdout, re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "80")  # as in a pipe: what one types is not cut short
    assert re.search(r"^training.evaluation_batch ", remnant("list", "settings", "gpm").stdout, re.MULTILINE)


# --- reproduce, keep --------------------------------------------------------------------------------------------------


def test_reproduce_prints_the_papers_figures_and_missing_runs() -> None:
    result = remnant("reproduce", "table1a", "--no-run")
    line = next(line for line in result.stdout.splitlines() if re.match(r"pmnist +gpm ", line))
    assert "not run" in line
    assert "93.91 ± 0.16" in line
    assert "…" not in result.stdout
    figures, headings = (heading.split() for heading in result.stdout.splitlines()[1:3])  # of whom is each number?
    assert figures == ["acc", "acc", "bwt", "bwt", "seconds"]
    assert [word for word in headings if "(" in word] == [*["(paper)", "(difference)"] * 2, "(paper)"]


def test_reproduce_prints_our_figures_from_runs_and_results(folder: Path) -> None:
    settings = resolve("pmnist", "gpm")
    for root, seed, acc in (("runs", 0, 0.93), ("results", 1, 0.95), ("runs", 1, 0.10)):  # what is kept counts
        run = RunFolder.create(folder / root, settings, seed)
        run.save_matrix(AccuracyMatrix(1, [[acc]]))
        run.save_result({"acc": acc, "bwt": -0.02, "seconds": {"train": 2.0}, "capacity": 1.0})
    for words in (["--no-run"], ["--seeds", "2", "--device", "cpu"]):  # with both seeds there, none is run
        result = remnant("reproduce", "table1a", "--methods", "gpm", "--benchmarks", "pmnist", *words)
        *_, line = result.stdout.splitlines()
        assert re.match(r"pmnist +gpm +2 +94\.00 ± 1\.41 +93\.91 ± 0\.16 +\+0\.09", line)


@pytest.mark.parametrize("file", ["settings.json", "result.json"])
def test_reproduce_names_a_damaged_folder_and_prints_the_others(folder: Path, file: str) -> None:
    for seed, acc in ((0, 0.93), (1, 0.95)):
        run = RunFolder.create(folder / "runs", resolve("pmnist", "gpm"), seed)
        run.save_matrix(AccuracyMatrix(1, [[acc]]))
        run.save_result({"acc": acc, "bwt": -0.02, "seconds": {"train": 2.0}, "capacity": 1.0})
    (run.path / file).write_text("{", encoding="utf-8")
    result = remnant("reproduce", "table1a", "--methods", "gpm", "--no-run", code=1)
    assert re.search(rf"seed1.{file} is damaged", result.stderr)
    assert re.search(r"pmnist +gpm +1 +93\.00", result.stdout)


def test_reproduce_continues_after_a_row_that_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_data(plan: Any, watch: object) -> list[RunFolder]:
        tried.append(plan.settings.benchmark)
        raise DataError(f"no data for {plan.settings.benchmark}")

    tried: list[str] = []
    monkeypatch.setattr("remnant.experiments.execute.run", no_data)
    result = remnant("reproduce", "table1b", "--methods", "hat", "--seeds", "1", "--device", "cpu", code=1)
    assert tried == ["split-cifar100", "split-miniimagenet", "five-datasets"]
    assert all(f"no data for {benchmark}" in result.stderr for benchmark in tried)
    assert "72.06 ± 0.50" in result.stdout  # the table all the same


def test_keep_copies_the_small_files_of_finished_runs(folder: Path) -> None:
    remnant("run", "permuted-digits", "gpm", *FEW)
    RunFolder.create(folder / "runs", resolve("permuted-digits", "finetune"), 0)
    assert "Kept 1 run in kept." in remnant("keep", "kept").stdout
    (kept,) = find_runs(folder / "kept")
    assert kept.result() is not None
    assert not list(kept.path.glob("checkpoint*"))
    assert not (kept.path / "metrics.jsonl").exists()
    before = (kept.path / "accuracy.csv").read_bytes()
    assert "Kept 1 run in kept." in remnant("keep", "kept").stdout  # the same once more
    (ours,) = (run for run in find_runs(folder / "runs") if run.finished)
    changed = before.replace(b"0.", b"0.0", 1)
    (kept.path / "accuracy.csv").write_bytes(changed)
    refused = remnant("keep", "kept", code=1).stderr.replace("\n", " ")
    assert f"has other accuracies than {ours.path.relative_to(folder)}" in refused
    assert (kept.path / "accuracy.csv").read_bytes() == changed
    (kept.path / "accuracy.csv").write_bytes(before)
    assert "There is no folder nowhere" in remnant("keep", "kept", "--runs", "nowhere", code=1).stderr
    assert "Name another folder" in remnant("keep", "runs", code=1).stderr
    (folder / "none").mkdir()
    assert (
        "No run in none is finished, so nothing was kept." in remnant("keep", "kept", "--runs", "none", code=1).stderr
    )


@pytest.mark.parametrize("seeds", ["1", "2"])
def test_a_file_that_an_own_hook_misses_is_named_with_its_line(seeds: str, folder: Path) -> None:
    Path("mine.py").write_text(
        "from remnant.methods import Finetune\n\n\n"
        "class Own(Finetune):\n    def on_epoch_end(self) -> None:\n        open('notes.txt')\n"
    )
    said = remnant("run", "permuted-digits", "mine.py:Own", *FEW, "--seeds", seeds, "--parallel", seeds, code=1).stderr
    assert "No such file or directory: 'notes.txt' (mine.py, line 6)" in said.replace("\n", " ")


@pytest.mark.parametrize("damage", ["accuracy.csv is gone", "result.json has another accuracy"])
def test_a_damaged_result_is_not_shown_as_finished(damage: str, folder: Path) -> None:
    remnant("run", "permuted-digits", "gpm", *FEW)
    (run,) = find_runs(folder / "runs")
    if damage == "accuracy.csv is gone":
        (run.path / "accuracy.csv").unlink()
    else:
        text = (run.path / "result.json").read_text()
        (run.path / "result.json").write_text(re.sub(r'"acc": [0-9.]+', '"acc": 0.999', text))
    for words in (["run", "permuted-digits", "gpm", *FEW], ["resume", "runs"]):
        assert "to run it again" in remnant(*words, code=1).stderr.replace("\n", " ")


def test_brackets_in_a_path_are_no_markup(folder: Path) -> None:
    words = ["permuted-digits", "finetune", *FEW, "--runs", "my [old] runs:b:"]
    assert "in my [old] runs:b:/permuted-digits/" in remnant("run", *words).stdout
    assert "Nothing to resume in my [old] runs:b::" in remnant("resume", "my [old] runs:b:").stdout
    assert "Kept 1 run in my [kept] ones." in remnant("keep", "my [kept] ones", "--runs", "my [old] runs:b:").stdout


# --- demo -------------------------------------------------------------------------------------------------------------


def test_demo_shows_forgetting_and_draws_it(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    result = remnant("demo")
    ends = {
        title: float(accuracy) for title, accuracy in re.findall(r"^(.+): ([\d.]+) % on all tasks", result.stdout, re.M)
    }
    assert ends["Gradient Projection Memory"] > ends["Plain fine-tuning"] + 20
    assert ends["All tasks at once (upper bound)"] > ends["Gradient Projection Memory"]
    forgot = dict(
        re.findall(r"^(.+): [\d.]+ % on all tasks at the end; ([\d.]+) points forgotten$", result.stdout, re.M)
    )
    assert float(forgot["Plain fine-tuning"]) > float(forgot["Gradient Projection Memory"])
    assert "All tasks at once (upper bound)" not in forgot  # it learns no task before another
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "The picture is demo.png." in result.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["demo.png"]  # nothing else is left behind


def test_demo_without_a_writable_picture(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    (folder / "demo.png").mkdir()
    assert demonstration._draw({name: AccuracyMatrix(1, [[0.9]]) for name in ("one", "other")}).startswith(
        "There is no picture: demo.png could not be written here ("
    )


def test_seeds_as_people_write_them() -> None:
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("3,1") == (3, 1)
    assert parse_seeds("2,2,0") == (2, 0)  # once each
    assert parse_seeds("7,") == (7,)
    for wrong in ("0", "-1", "x", ",", "1,,", "1,-2", "", "1.5", "20260101", f"1,{2**64}", "9" * 5000):
        with pytest.raises(UserError, match="--seeds"):
            parse_seeds(wrong)
    with pytest.raises(UserError, match=r"--seeds 20260101,$"):  # one seed, and not twenty million
        parse_seeds("20260101")
