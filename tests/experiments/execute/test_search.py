"""A search: by validation accuracy, on the same path whether or not it is interrupted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from remnant.errors import RunError
from remnant.experiments import Plan, resolve
from remnant.experiments.execute import Search
from remnant.options import OptionError

OVER = ("lr=0.001..0.5:log", "samples=20..200", "rank_rule=paper,authors")
FEW = ("stream.tasks=2", "training.epochs=1")


def search(root: Path, *over: str, given: Sequence[str] = FEW, seeds: tuple[int, ...] = (0,)) -> Search:
    def plan(changes: Sequence[str]) -> Plan:
        return Plan(resolve("permuted-digits", "gpm", [*given, *changes]), seeds, root, "cpu")

    return Search(over or OVER, plan)


def pretend(plan: Plan) -> None:
    """Finishes a plan: the validation accuracy is best at lr = 0.1, and the test accuracy is worst there."""
    for seed in plan.seeds:
        good = max(0.0, 1 - abs(plan.settings.options["lr"] - 0.1))
        plan.folder(seed).save_result({"acc": 1 - good, "bwt": 0.0, "seconds": {}, "validation_acc": good - seed / 100})


def values(found: Search) -> list[dict[str, str]]:
    return [trial["values"] for trial in found.trials]


def finished(root: Path, count: int, over: Sequence[str] = (), **how: Any) -> Search:
    made = search(root, *over, **how)
    for plans in made.rounds(count):
        for plan in plans.values():
            pretend(plan)
    return made


def test_it_finds_what_is_best_on_validation_sets(tmp_path: Path) -> None:
    made = finished(tmp_path, 30)
    best = made.ranking()[0]
    assert abs(float(best["values"]["lr"]) - 0.1) < 0.02
    assert best["validation_acc"] == max(trial["validation_acc"] for trial in made.trials)
    assert len(made.trials) == 30
    for chosen in values(made):
        assert 0.001 <= float(chosen["lr"]) <= 0.5
        assert 20 <= int(chosen["samples"]) <= 200
        assert chosen["rank_rule"] in ("paper", "authors")
    assert len({chosen["lr"] for chosen in values(made)}) > 20


def test_a_killed_search_continues_on_the_path_of_one_that_never_stopped(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole", 20)  # ten rounds of two; the first ten trials are random
    for number, plans in enumerate(search(tmp_path / "killed").rounds(20)):
        for plan in list(plans.values())[: 1 if number == 5 else None]:
            pretend(plan)
        if number == 5:  # in the middle of a round
            break
    assert values(finished(tmp_path / "killed", 20)) == values(whole)
    assert values(finished(tmp_path / "killed", 22))[:20] == values(whole)  # more trials of the same search


def test_the_mean_over_seeds_counts_and_a_failed_trial_is_left_out(tmp_path: Path) -> None:
    made = search(tmp_path, seeds=(0, 1))
    for plans in made.rounds(20):
        pretend(next(iter(plans.values())))  # the other one fails
    assert len(made.ranking()) == 10
    assert all(trial["validation_acc"] is None for trial in made.trials[1::2])
    lr = float(made.trials[0]["values"]["lr"])
    assert made.trials[0]["validation_acc"] == pytest.approx(1 - abs(lr - 0.1) - 0.005)
    assert json.loads(made.path.read_text())["trials"] == made.trials


def test_a_search_whose_trials_all_fail_stops_and_tries_them_again(tmp_path: Path) -> None:
    made = search(tmp_path)
    with pytest.raises(RunError, match="The last 6 trials failed"):
        list(made.rounds(20))
    tried = values(made)
    assert values(finished(tmp_path, 4))[: len(tried)] == tried


def test_two_processes_do_not_run_the_same_search(tmp_path: Path) -> None:
    rounds = search(tmp_path).rounds(10)
    next(rounds)
    with pytest.raises(RunError, match="Another process is running this search"):
        next(search(tmp_path).rounds(10))


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ("lr=0.5..0.1", "Write lr=0.001..0.1:log"),
        ("lr=0..0.1:log", "both ends must be above 0. Write lr=0.001..0.1:log"),
        ("lr=,", "its values are missing"),
        ("rank_rule=paper,papers,authors", "--over rank_rule=papers"),
        ("lr", "a key and its values are missing"),
        ("lr=0.1..50", "--over lr=50: lr takes a number above 0 and up to 10"),
        ("thresold=0.1..0.9", "Did you mean 'threshold'"),
    ],
)
def test_a_wrong_range_is_refused(over: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=says):
        search(tmp_path, over)


def test_a_setting_in_two_overs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--over lr=0.1..0.2 --over lr=0.3..0.4: lr is given twice\. Give it once\."):
        search(tmp_path, "lr=0.1..0.2", "lr=0.3..0.4")


OWN = """
from remnant.data import load_stream

def stream(seed, offset=1):
    return load_stream("permuted-digits", seed=seed, tasks=2)
"""


def test_the_type_of_a_setting_decides_whether_its_values_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lr = {float(chosen["lr"]) for chosen in values(finished(tmp_path, 10, over=["lr=1..2"]))}
    assert len(lr) == 10
    assert all(1 <= each <= 2 for each in lr)
    samples = {chosen["samples"] for chosen in values(finished(tmp_path, 3, over=["samples=1..20:log"]))}
    assert all(each.isdigit() for each in samples)
    with pytest.raises(OptionError, match="samples takes a whole number"):
        search(tmp_path, "samples=20.0..200")
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN, encoding="utf-8")
    for over, kind in (("stream.offset=1..9", int), ("stream.offset=1.0..9.0", float)):  # it has no type

        def plan(changes: Sequence[str]) -> Plan:
            return Plan(resolve("own.py:stream", "gpm", changes), (0,), tmp_path, "cpu")

        assert type(Search([over], plan).space["stream.offset"].low) is kind


def test_no_values_are_tried_twice(tmp_path: Path) -> None:
    over = ["samples=20..23", "rank_rule=paper,authors"]
    tried = values(finished(tmp_path, 20, over=over))  # there are eight
    assert len(tried) == len({tuple(each.values()) for each in tried}) == 8
    assert values(finished(tmp_path, 30, over=over)) == tried


def test_a_stream_without_validation_sets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="have no validation set"):
        search(tmp_path, given=(*FEW, "stream.valid=0.0"))
