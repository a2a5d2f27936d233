"""Reading run folders: damaged runs are listed, unfinished ones are not counted, and other settings are kept apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up import MLP_RANKS, histogram, run, settings

from remnant.errors import RunError
from remnant.report.content import make_content
from remnant.report.records import Reading, read_runs
from remnant.report.variants import collect


def read(root: Path) -> Reading:
    return read_runs([root])


def test_an_empty_folder_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="contains no run"):
        read(tmp_path)
    with pytest.raises(RunError, match="is not a folder"):
        read(tmp_path / "nowhere")


def test_a_runs_own_folder_can_be_read(tmp_path: Path) -> None:
    folder = run(tmp_path, settings("pmnist", "gpm"))
    assert [found.seed for found in read(folder).runs] == [0]


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("result.json", '{"acc": 0.9', "result.json is damaged"),
        ("result.json", '{"acc": "good", "seconds": {}}', "acc is 'good', not a number"),
        ("result.json", '{"seconds": {}}', "it lacks acc"),
        ("result.json", '{"acc": 0.1, "seconds": {}}', "says ACC 0.1000, but accuracy.csv gives 0.8000"),
        ("result.json", '{"acc": 0.8}', "it lacks seconds"),
        ("result.json", "[]", "not a JSON object"),
        ("accuracy.csv", "after,0,1\n0,0.9,\n", "accuracy.csv is missing or incomplete"),
        ("accuracy.csv", "after,0,1\n0,most,\n", "accuracy.csv is damaged"),
        ("accuracy.csv", None, "accuracy.csv is missing or incomplete"),
        ("settings.json", "{}", "it lacks benchmark, method, digest, seed, settings"),
        ("settings.json", None, "it has no settings.json"),
        ("settings.json", b"\xff\xfe", "damaged"),
        ("ranks.json", '{"head": 3}', "head is 3, not a list"),
        ("environment.json", "rot", "environment.json is damaged"),
        ("drift.json", '{"head": {"edges": [0, 1], "counts": [1, 2]}}', "n counts and n + 1 rising edges"),
        ("drift.json", '{"head": {"edges": [1, 0], "counts": [1]}}', "rising edges"),
        ("drift.json", '{"head": 5}', "head is 5, not a table"),
        ("drift.json", '{"head": {"edges": [0, 1], "counts": [-1]}}', "head.counts[0] is -1, not a number from 0"),
    ],
)
def test_a_damaged_run_is_named_and_left_out(tmp_path: Path, file: str, content: str | bytes | None, why: str) -> None:
    whole, broken = (run(tmp_path, settings("pmnist", "gpm"), seed) for seed in (0, 1))
    if content is None:
        (broken / file).unlink()
    else:
        (broken / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    found = read(tmp_path)
    assert [r.seed for r in found.runs] == [0]
    assert [damaged.path for damaged in found.damaged] == [broken.relative_to(tmp_path).as_posix()]
    assert why in found.damaged[0].problem
    assert str(tmp_path) not in found.damaged[0].problem
    assert whole.is_dir()


ODD = (None, -1, True, "x", [], {"a": {"b": [1]}}, float("nan"))
FILES = ("settings.json", "environment.json", "ranks.json", "result.json", "drift.json", "metrics.jsonl")


@pytest.mark.parametrize("file", FILES)
def test_no_json_stops_a_report(tmp_path: Path, file: str) -> None:
    """A report of the whole run and one whose file has anything at all in it, or in one of its entries."""
    run(tmp_path, settings("pmnist", "gpm"), 0)
    other = run(tmp_path, settings("pmnist", "gpm"), 1, epochs=2, ranks=MLP_RANKS, drift={"head": histogram(1.0)})
    good = json.loads((other / file).read_text().splitlines()[0] if file.endswith("l") else (other / file).read_text())
    sections = good.get("settings", {}) if file == "settings.json" else {}
    for odd in ODD:
        changed = [odd, *({**good, key: odd} for key in good)]
        changed += [{**good, "settings": {**sections, key: odd}} for key in sections]
        for content in changed:
            (other / file).write_text(json.dumps(content) + "\n")
            reading = make_content([tmp_path]).collection.reading
            assert len(reading.runs) + len(reading.damaged) == 2


@pytest.mark.parametrize("undefined", [None, float("nan")])
def test_a_bwt_that_is_not_defined_may_be_null_or_nan(tmp_path: Path, undefined: float | None) -> None:
    file = run(tmp_path, settings("pmnist", "multitask")) / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "bwt": undefined}))
    (variant,) = collect(read(tmp_path)).variants
    assert (variant.bwt.mean, variant.acc.n) == (None, 1)


def test_an_incomplete_line_of_metrics_is_ignored(tmp_path: Path) -> None:
    folder = run(tmp_path, settings("pmnist", "gpm"), epochs=3)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"loss": 0.')
    assert len(read(tmp_path).runs[0].metrics) == 3


def test_an_unfinished_run_is_not_measured(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"), 0)
    run(tmp_path, settings("pmnist", "gpm"), 1, finished=False)
    (variant,) = collect(read(tmp_path)).variants
    assert [[r.seed for r in runs] for runs in (variant.runs, variant.unfinished)] == [[0], [1]]
    assert variant.acc.n == 1


def test_other_settings_are_kept_apart_and_named(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"))
    run(tmp_path, settings("pmnist", "gpm", ["training.epochs=1", "threshold.value=0.9"]))
    run(tmp_path, settings("pmnist", "gpm", protocol="sane"))
    collection = collect(read(tmp_path))
    assert {v.label for v in collection.variants} == {
        "as in the recipe",
        "threshold.value=0.9, training.epochs=1",
        "sane protocol",
    }
    main = collection.main("pmnist", "gpm")
    assert main is not None
    assert main.as_in_recipe


def test_a_table_that_lost_an_entry_is_named(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "owm", ['alpha_start={"hidden.0" = 3.0}']))
    run(tmp_path, settings("split-cifar100", "gpm", ["layer_samples={}"]))
    gpm, owm = sorted(collect(read(tmp_path)).variants, key=lambda variant: variant.method)
    assert (gpm.label, gpm.command([0])) == ("no layer_samples", "")  # no --set leads there
    assert (owm.label, owm.command([0])) == ("alpha_start.hidden.0=3.0, no alpha_start.*", "")


def test_edited_settings_are_kept_apart(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"), 0)
    edited = run(tmp_path, settings("pmnist", "gpm"), 1)
    about = json.loads((edited / "settings.json").read_text())
    about["settings"]["training"]["epochs"] = 50
    (edited / "settings.json").write_text(json.dumps(about))
    found = read(tmp_path)
    assert [[r.seed for r in variant.runs] for variant in collect(found).variants] in ([[0], [1]], [[1], [0]])
    assert len(found.remarks) == 1
    assert "kept apart" in found.remarks[0]


def test_the_first_folder_that_has_a_seed_counts(tmp_path: Path) -> None:
    for name, acc in (("results", 0.9), ("runs", 0.1)):
        run(tmp_path / name, settings("pmnist", "gpm"), 0, (acc, acc))
    found = read_runs([tmp_path / "results", tmp_path / "runs"])
    assert [r.result.acc for r in found.runs if r.result] == [0.9]
    assert len(found.remarks) == 1


def test_drift_is_read(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"), drift={"head": histogram(1.0)})
    assert len(read(tmp_path).runs[0].drift["head"].counts) == 12


def test_a_damaged_file_of_times_is_named_and_left_out(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"))
    (tmp_path / "times").mkdir()
    (tmp_path / "times" / "pmnist.json").write_text('{"methods": {"gpm": 3}}')
    reading = read_runs([tmp_path])
    assert len(reading.runs) == 1
    assert reading.times == {}
    (damaged,) = reading.damaged
    assert damaged.path == "times/pmnist.json"
    assert str(tmp_path) not in damaged.problem
