"""Comparisons: intervals equal a slow version, and the best is marked together with all that it cannot be told from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from made_up import run, settings
from scipy import stats

from remnant.report.comparison import Compared, Row, compare_runs
from remnant.report.comparison_files import comparison_rows, comparison_text
from remnant.report.figures import comparison_drawing
from remnant.report.statistics import paired

differences = st.lists(st.integers(-1000, 1000).map(lambda n: n / 100), min_size=2, max_size=8)


def slow_interval(values: Sequence[float]) -> tuple[float, float]:
    """The differences that a t-test of these values does not reject at 5 %, by bisection on both sides of the mean."""
    mean = sum(values) / len(values)
    bounds = []
    for side in (-1, 1):
        inside, outside = 0.0, 1e6
        for _ in range(50):
            middle = (inside + outside) / 2
            rejected = stats.ttest_1samp(values, mean + side * middle).pvalue < 0.05
            inside, outside = (inside, middle) if rejected else (middle, outside)
        bounds.append(mean + side * inside)
    return bounds[0], bounds[1]


@given(differences)
def test_the_paired_interval_holds_what_a_test_does_not_reject(values: list[float]) -> None:
    assume(len(set(values)) > 1)
    assert paired(values) == pytest.approx(slow_interval(values), rel=1e-5, abs=1e-5)


def test_equal_differences_have_an_interval_of_no_width_and_one_has_none() -> None:
    assert paired([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert paired([2.0]) is None
    assert paired([]) is None


def made(root: Path, accuracies: dict[str, Sequence[float]], seeds: dict[str, Sequence[int]] | None = None) -> Compared:
    """Runs on two tasks with these accuracies, a seed for each."""
    for method, values in accuracies.items():
        for seed, acc in zip((seeds or {}).get(method, range(len(values))), values, strict=True):
            run(root, settings("pmnist", method), seed, (acc, acc), forgotten=0.0)
    return compare_runs([root])


def rows(compared: Compared) -> dict[str, Row]:
    (comparison,) = compared.comparisons
    return {row.variant.method: row for row in comparison.rows}


def marks(compared: Compared, measure: str = "acc") -> dict[str, str]:
    return {method: row.estimates[measure].mark for method, row in rows(compared).items()}


def test_all_that_are_not_told_from_the_best_are_marked(tmp_path: Path) -> None:
    compared = made(
        tmp_path, {"gpm": (0.9, 0.8, 0.7), "er": (0.92, 0.78, 0.69), "ewc": (0.89, 0.79, 0.69), "ogd": (0.5, 0.5, 0.9)}
    )
    # EWC is a point below GPM with every seed: it is close, but it is worse. OGD is far below, but may be as good.
    assert marks(compared) == {"gpm": "*", "er": "*", "ewc": "", "ogd": "*"}
    assert list(marks(compared)) == ["gpm", "er", "ewc", "ogd"]
    estimate = rows(compared)["ewc"].estimates["acc"]
    assert estimate.paired
    assert estimate.difference == pytest.approx(-0.01)
    assert estimate.interval == pytest.approx((-0.01, -0.01))


@given_settings(max_examples=15)
@given(st.lists(st.lists(st.integers(1, 99), min_size=3, max_size=3), min_size=2, max_size=4))
def test_marks_follow_from_the_slow_interval(
    tmp_path_factory: pytest.TempPathFactory, percents: list[list[int]]
) -> None:
    methods = dict(zip(("gpm", "er", "ewc", "ogd"), percents, strict=False))
    assume(len({sum(values) for values in percents}) == len(percents))
    compared = made(tmp_path_factory.mktemp("runs"), {m: [x / 100 for x in values] for m, values in methods.items()})
    best = max(methods, key=lambda method: sum(methods[method]))
    found = marks(compared)
    assert found.pop(best) == "*"
    for method, mark in found.items():
        gaps = [x - y for x, y in zip(methods[method], methods[best], strict=True)]
        low, high = slow_interval(gaps) if len(set(gaps)) > 1 else (gaps[0], gaps[0])
        assume(abs(low) > 1e-4 and abs(high) > 1e-4)
        assert mark == ("*" if low <= 0 <= high else "")


def test_one_seed_cannot_say(tmp_path: Path) -> None:
    compared = made(tmp_path, {"gpm": (0.9,), "er": (0.3,)})
    assert marks(compared) == {"gpm": "*", "er": "?"}
    (comparison,) = compared.comparisons
    assert any(remark.startswith("? One seed has no interval") for remark in comparison_rows(comparison)[2])


def test_one_lucky_seed_is_not_the_best_of_methods_with_several(tmp_path: Path) -> None:
    compared = made(tmp_path, {"er": (0.95,), "gpm": (0.9, 0.8), "ewc": (0.5, 0.41)})
    assert marks(compared) == {"er": "?", "gpm": "*", "ewc": ""}


def test_other_seeds_have_welchs_interval(tmp_path: Path) -> None:
    accuracies = {"gpm": (0.9, 0.8, 0.7), "er": (0.6, 0.75)}
    estimate = rows(made(tmp_path, accuracies, {"er": (5, 6)}))["er"].estimates["acc"]
    slow = stats.ttest_ind(accuracies["er"], accuracies["gpm"], equal_var=False).confidence_interval(0.95)
    assert not estimate.paired
    assert estimate.interval == pytest.approx((slow.low, slow.high))


def test_bounds_do_not_compete_and_come_last(tmp_path: Path) -> None:
    compared = made(tmp_path, {"multitask": (0.99, 0.98), "gpm": (0.9, 0.8), "er": (0.5, 0.41)})
    assert list(marks(compared)) == ["gpm", "er", "multitask"]
    assert marks(compared)["multitask"] == ""
    assert rows(compared)["multitask"].estimates["acc"].difference == pytest.approx(0.135)


def test_less_forgetting_is_better_and_times_are_not_ranked(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tmp_path, settings("pmnist", "gpm"), seed, (0.5 + seed / 100, 0.5), forgotten=0.1, seconds=5.0)
        run(tmp_path, settings("pmnist", "er"), seed, (0.5 + seed / 100, 0.9), forgotten=0.3, seconds=1.0)
    compared = compare_runs([tmp_path])
    assert marks(compared, "forgetting") == {"gpm": "*", "er": ""}
    assert marks(compared, "bwt") == {"gpm": "*", "er": ""}
    assert marks(compared, "acc") == {"gpm": "", "er": "*"}
    assert marks(compared, "seconds") == {"gpm": "", "er": ""}


def test_a_method_alone_is_not_marked(tmp_path: Path) -> None:
    assert marks(made(tmp_path, {"gpm": (0.9, 0.8)})) == {"gpm": ""}


def test_different_streams_have_different_tables(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm", ["stream.tasks=3"]))
    run(tmp_path, settings("pmnist", "gpm", ["training.epochs=1"]))
    run(tmp_path, settings("pmnist", "gem"))  # its recipe has a smaller stream, as published
    titles = {each.title: len(each.rows) for each in compare_runs([tmp_path]).comparisons}
    assert titles == {"pmnist": 2, "pmnist (stream.tasks=3)": 1}


def test_settings_that_all_rows_share_are_in_the_title(tmp_path: Path) -> None:
    for method, more in (("gpm", ["lr=0.1"]), ("er", [])):
        run(tmp_path, settings("pmnist", method, ["training.epochs=1", *more]))
    (comparison,) = compare_runs([tmp_path]).comparisons
    title, lines, _ = comparison_rows(comparison)
    assert title == "pmnist (training.epochs=1)"
    assert sorted((line["method"], line["settings"]) for line in lines) == [("er", ""), ("gpm", "lr=0.1")]


def test_a_method_in_a_file_is_compared_without_running_it(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gone.py:Own", ["lr=0.3", "training.epochs=2"], foreign=True))
    (comparison,) = compare_runs([tmp_path]).comparisons
    assert comparison.title == "pmnist"
    assert comparison_rows(comparison)[1][0]["settings"] == "lr=0.3, training.epochs=2"


def test_joint_training_is_strict_json(tmp_path: Path) -> None:
    path = run(tmp_path, settings("pmnist", "multitask"), 0, (0.9, 0.8))
    (path / "accuracy.csv").write_text("after,0,1\n0,,\n1,0.9,0.8\n", encoding="utf-8")
    result = path / "result.json"
    content = json.loads(result.read_text(encoding="utf-8")) | {"bwt": None, "learning_accuracy": None}
    result.write_text(json.dumps(content), encoding="utf-8")

    def refuse(name: str) -> Any:
        raise ValueError(name)

    found = json.loads(comparison_text(compare_runs([tmp_path]), "json"), parse_constant=refuse)
    (method,) = found["comparisons"][0]["methods"]
    assert method["forgetting"]["mean"] is None
    assert method["bound"]


def test_names_are_no_formulas_and_no_markup(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "=1+1|<b>_&", foreign=True))
    run(tmp_path, settings("pmnist", "gpm"))
    compared = compare_runs([tmp_path])
    lines = list(csv.DictReader(io.StringIO(comparison_text(compared, "csv"))))
    assert {line["method"] for line in lines} == {"'=1+1|<b>_&", "gpm"}
    assert r"=1+1\|&lt;b&gt;\_&amp;" in comparison_text(compared, "markdown")
    assert r"=1+1|\textless{}b\textgreater{}\_\&" in comparison_text(compared, "latex")


def test_the_picture_draws_every_seed_and_describes_itself(tmp_path: Path) -> None:
    compared = made(tmp_path, {"gpm": (0.9, 0.8), "er": (0.5, 0.4), "ewc": (0.3,)})
    drawing = comparison_drawing(compared.comparisons[0])
    assert [len(row["seeds"]) for row in drawing.data["rows"]] == [2, 2, 1]
    assert drawing.data["rows"][2]["interval"] == []
    assert "GPM 85.0 %; ER 45.0 %; EWC 30.0 %" in drawing.alt
    files = drawing.render()
    assert (files["png"][:4], files["pdf"][:4]) == (b"\x89PNG", b"%PDF")
    assert b"GPM *" in files["svg"]
    alone = made(tmp_path / "alone", {"gpm": (0.9,)}).comparisons[0]
    assert b"difference" not in comparison_drawing(alone).render()["svg"]
