"""A sweep: the runs for the values of a setting, and the table of their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from remnant.experiments.execute import Plan, sweep_rows, sweep_settings, without_drift
from remnant.experiments.settings import Settings, resolve
from remnant.options import OptionError


def sweep(over: str, *overrides: str) -> dict[str, Settings]:
    return sweep_settings("split-cifar100", "gpm", [over], overrides)


def plans(over: str, root: Path, seeds: tuple[int, ...] = (0, 1)) -> dict[str, Plan]:
    return {change: Plan(settings, seeds, root, "cpu") for change, settings in sweep(over).items()}


def test_each_value_is_the_run_that_set_would_make() -> None:
    assert sweep("threshold.start=0.90, 0.95,.97", "training.epochs=1") == {
        f"threshold.start={eps}": resolve("split-cifar100", "gpm", [f"threshold.start={eps}", "training.epochs=1"])
        for eps in ("0.90", "0.95", ".97")
    }


def test_the_recipes_own_value_is_the_recipes_own_run() -> None:
    assert sweep("threshold.start=0.97") == {"threshold.start=0.97": resolve("split-cifar100", "gpm")}


def test_commas_inside_a_value_are_its_own() -> None:
    lists = sweep_settings("pmnist", "gpm", ["network.hidden=[100, 100],[50,50]"])
    assert [settings.network["hidden"] for settings in lists.values()] == [[100, 100], [50, 50]]
    tables = sweep('threshold={start = 0.9, step = 0.01}, {layers = {"conv1" = 0.9, "*" = 0.8}},0.5')
    assert [sorted(settings.options["threshold"]) for settings in tables.values()] == [
        ["start", "step"],
        ["layers"],
        ["value"],
    ]


@pytest.mark.parametrize(
    ("over", "says"),
    [
        (["thresold.start=0.9"], r"--over thresold.start=0.9: no such setting of gpm. Did you mean 'threshold"),
        (["threshold.start=0.9,2"], r"--over threshold.start=2: threshold.start takes a number above 0 and up to 1"),
        (["threshold.start=0.9,high"], r"--over threshold.start=high: threshold.start takes a number"),
        (["threshold.start"], "a key and its values are expected. Write key=value,value"),
        (["=0.9"], "a key and its values are expected"),
        (["threshold.start="], "a value is missing"),
        (["threshold.start=0.9,,0.95"], "a value is missing"),
        (["threshold.start=0.9,0.95,"], "a value is missing"),
        (
            ["threshold.start=0.9,0.95,0.90"],
            "start=0.90 means the same run as threshold.start=0.9. Give each value once",
        ),
        (["lr=0.01,1e-2"], "lr=1e-2 means the same run as lr=0.01"),
        (["samples=100,200"], "samples is in --set too"),
        (
            ["layer_samples={conv1=5}"],
            "--set layer_samples.conv2=7 --over layer_samples={conv1=5}: the second sets all of",
        ),
        (["lr=0.1", "threshold.start=0.9"], "only one setting at a time"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_value_is_refused_before_anything_runs(over: list[str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        sweep_settings("split-cifar100", "gpm", over, ["samples=50", "layer_samples.conv2=7"])


def test_rows_hold_what_is_finished(tmp_path: Path) -> None:
    made = plans("threshold.start=0.9,0.95,0.99", tmp_path)
    for plan, accs in zip(made.values(), ([0.5, 0.7], [0.6], []), strict=True):
        for seed, acc in enumerate(accs):
            plan.folder(seed).save_result(
                {
                    "acc": acc,
                    "seconds": {},
                    "validation_acc": acc / 2,
                    "validation_bwt": acc / 5,
                    "bwt": -acc / 10,
                    "memory_bytes": 2000,
                }
            )
    figures = ("validation ACC, %", "validation BWT", "ACC, %", "BWT", "memory, kB")
    assert sweep_rows(made) == [
        {
            "threshold.start": "0.9",
            "seeds": "2",
            **dict(
                zip(figures, ("30.00 ± 7.07", "0.120 ± 0.028", "60.00 ± 14.14", "-0.060 ± 0.014", "2 ± 0"), strict=True)
            ),
        },
        {
            "threshold.start": "0.95",
            "seeds": "1",
            **dict(zip(figures, ("30.00", "0.120", "60.00", "-0.060", "2"), strict=True)),
        },
        {"threshold.start": "0.99", "seeds": "0", **dict.fromkeys(figures, "not finished")},
    ]


def test_an_older_run_without_recorded_drift_is_named(tmp_path: Path) -> None:
    made = plans("threshold.start=0.9,0.95", tmp_path, seeds=(0,)).values()
    old, new = (plan.folder(0) for plan in made)
    for folder in (old, new):
        folder.save_ranks({"conv1": [1]})
    new.save_drift({"conv1": {"edges": [0, 1], "counts": [1]}})
    assert without_drift(made) == []  # neither is finished
    for folder in (old, new):
        folder.save_result({"acc": 0.5, "bwt": 0.0, "seconds": {}})
    (sentence,) = without_drift(made)
    assert sentence.startswith(f"{old.path} was run before without recording its drift")
