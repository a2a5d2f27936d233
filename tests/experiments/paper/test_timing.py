"""Table 2: the times of methods, and the table of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from remnant.accelerated import FastestTrainer
from remnant.cli import app
from remnant.data import DataError, Split
from remnant.errors import RunError
from remnant.experiments.paper import Row, Timing, load_table, load_timings, save_timings, timing
from remnant.experiments.settings import Settings, resolve
from remnant.methods import Method
from remnant.training import EagerSteps, Steps, Work

FEW = ("stream.tasks=5", "training.epochs=2", "network.hidden=[20, 20]")


@pytest.mark.parametrize("method", ["gpm", "ogd", "er"])
def test_a_method_is_timed_at_its_first_middle_and_last_task(method: str) -> None:
    settings = resolve("permuted-digits", method, FEW)
    found = timing.measure(settings, torch.device("cpu"))
    assert found.digest == settings.digest
    assert len(found.epochs) == 3
    assert min(found.epochs) > 0
    assert found.finish > 0


def test_a_part_of_a_long_epoch_is_timed_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def step(method: Method, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return torch.zeros(())

    def seconds(device: torch.device, work: Callable[[], None]) -> float:
        before = steps
        work()
        return float(steps - before)  # a step takes a second

    monkeypatch.setattr(Method, "step", step)
    monkeypatch.setattr(timing, "_seconds", seconds)
    settings = resolve("permuted-digits", "finetune", ["stream.tasks=1", *FEW[1:]])
    (whole,) = timing.measure(settings, torch.device("cpu")).epochs
    monkeypatch.setattr(timing, "MOST_STEPS", 7)
    steps = 0
    (part,) = timing.measure(settings, torch.device("cpu")).epochs
    assert steps == 14  # to set libraries up, and timed
    assert part == pytest.approx(whole, abs=1)  # the last batch may be a short one


def test_a_method_that_falls_back_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager steps do not compare with steps of a CUDA graph."""

    def steps(self: FastestTrainer, method: Method, train: Split) -> Work[Steps]:
        if method.name == "er":
            self.fallback = "steps are not captured: no room."
        yield None
        return EagerSteps(method, train, self.schedule.batch)

    monkeypatch.setattr(FastestTrainer, "steps", steps)
    paper = load_table("table2").rows[0].paper
    rows = [Row("permuted-digits", method, ("stream.tasks=1", "training.epochs=1"), paper) for method in ("er", "ewc")]
    with pytest.raises(RunError, match="er on permuted-digits is not timed: steps are not captured: no room"):
        timing.time_methods(rows, "cpu", tmp_path, lambda line: None)
    assert set(load_timings([tmp_path], "permuted-digits")[0]) == {"gpm", "ewc"}


def test_a_single_task_is_timed_once() -> None:
    found = timing.measure(resolve("permuted-digits", "finetune", ["stream.tasks=1", *FEW[1:]]), torch.device("cpu"))
    assert len(found.epochs) == 1
    assert found.epoch == found.epochs[0]


def test_the_mean_over_tasks_is_that_of_a_line_through_the_timed_ones() -> None:
    assert Timing("", (1.0, 3.0, 5.0), 0.0).epoch == 3.0
    assert Timing("", (1.0, 1.0, 5.0), 0.0).epoch == 2.0


def test_a_task_takes_its_epochs_and_its_end() -> None:
    assert Timing("", (1.0, 3.0, 5.0), 0.5).task(4) == 12.5


def timed(root: Path, **epochs: float) -> None:
    methods = {
        name: {"digest": resolve("pmnist", name).digest, "epochs": [seconds] * 3, "finish": 0.5}
        for name, seconds in epochs.items()
    }
    save_timings(root, "pmnist", {"environment": {"device": "a device"}, "methods": methods})


def cells(root: Path) -> dict[str, dict[str, str]]:
    rows = [row for row in load_table("table2").rows if row.benchmark == "pmnist"]
    return {line["method"]: line for line in timing.timing_rows(rows, [root])}


def test_the_table_gives_times_relative_to_gpm(tmp_path: Path) -> None:
    timed(tmp_path, gpm=2.0, er=5.0)
    found = cells(tmp_path)
    assert found["er"]["seconds per epoch"] == "5"
    assert found["er"]["relative to gpm"] == "2.43"  # five epochs and the end: 25.5 s for 10.5 s
    assert found["er"]["relative to gpm (paper)"] == "1.06"  # 259 s and 245 s
    assert found["er"]["device"] == "a device"
    assert found["gpm"]["relative to gpm"] == "1.00"
    assert found["ogd"]["seconds per epoch"] == "not run"
    assert found["ogd"]["relative to gpm"] == "–"
    assert found["ogd"]["relative to gpm (paper)"] == "6.77"


def test_times_of_other_settings_do_not_count(tmp_path: Path) -> None:
    other = {"digest": "00000000", "epochs": [1.0], "finish": 0.0}
    gpm = {**other, "digest": resolve("pmnist", "gpm").digest}
    save_timings(tmp_path, "pmnist", {"environment": {"device": "a device"}, "methods": {"gpm": gpm, "er": other}})
    assert cells(tmp_path)["er"]["seconds per epoch"] == "not run"


def test_nothing_is_relative_to_gpm_with_other_settings(tmp_path: Path) -> None:
    er = {"digest": resolve("pmnist", "er").digest, "epochs": [1.0], "finish": 0.0}
    gpm = {**er, "digest": "00000000"}
    save_timings(tmp_path, "pmnist", {"environment": {"device": "a device"}, "methods": {"gpm": gpm, "er": er}})
    assert cells(tmp_path)["er"]["seconds per epoch"] == "1"
    assert cells(tmp_path)["er"]["relative to gpm"] == "–"


def no_data(failing: str, asked: list[str], settings: Settings, device: torch.device) -> Timing:
    asked.append(f"{settings.benchmark} {settings.method}")
    if failing in asked[-1]:
        raise DataError(f"no data for {settings.benchmark}")
    return Timing(settings.digest, (2.0,), 0.0)


def test_a_benchmark_that_cannot_be_timed_leaves_the_others_and_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(timing, "measure", partial(no_data, "split-miniimagenet", asked))
    words = ["reproduce", "table2", "--methods", "er,gpm", "--device", "cpu", "--runs", str(tmp_path)]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 1
    assert "no data for split-miniimagenet" in said.output
    assert "five-datasets er" in asked
    assert {path.stem for path in (tmp_path / "times").iterdir()} == {"pmnist", "split-cifar100", "five-datasets"}
    assert re.search(r"five-datasets +er +2 +0 +1\.00 +1\.40", said.output)


def test_times_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "measure", partial(no_data, "pmnist ewc", []))
    rows = [
        row for row in load_table("table2").rows if row.benchmark == "pmnist" and row.method in ("er", "ewc", "gpm")
    ]
    with pytest.raises(DataError):
        timing.time_methods(rows, "cpu", tmp_path, lambda line: None)
    assert cells(tmp_path)["er"]["relative to gpm"] == "1.00"
    assert cells(tmp_path)["ewc"]["seconds per epoch"] == "not run"


def test_a_missing_device_is_refused_once(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["reproduce", "table2", "--device", "cdua", "--runs", str(tmp_path)])
    assert said.exit_code == 1
    assert said.output.count("no such device") == 1


def test_times_are_not_measured_on_a_cluster(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["reproduce", "table2", "--on", "ray", "--runs", str(tmp_path)])
    assert said.exit_code == 1
    assert "Leave out --on." in said.stderr


def test_a_damaged_file_of_times_is_named(tmp_path: Path) -> None:
    save_timings(tmp_path, "pmnist", {"methods": {"gpm": {"digest": 1}}})
    with pytest.raises(RunError, match=r"pmnist\.json is damaged"):
        cells(tmp_path)


def test_times_are_kept_and_printed(tmp_path: Path) -> None:
    timed(tmp_path / "runs", gpm=2.0, ewc=3.0)
    said = CliRunner().invoke(app, ["keep", "--runs", str(tmp_path / "runs"), str(tmp_path / "kept")])
    assert said.exit_code == 0
    assert "Kept 0 runs and the times of pmnist in " in said.output
    words = ["reproduce", "table2", "--no-run", "--benchmarks", "pmnist"]
    said = CliRunner().invoke(app, [*words, "--runs", str(tmp_path / "none"), "--results", str(tmp_path / "kept")])
    assert said.exit_code == 0, said.output
    assert "1.48" in said.output  # 15.5 s for 10.5 s
