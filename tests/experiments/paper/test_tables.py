"""Our figures beside the paper's: the right rows, the right arithmetic, and no number without a run."""

from math import nan
from pathlib import Path

import pytest

from remnant.evaluation import AccuracyMatrix
from remnant.experiments import resolve
from remnant.experiments.paper import QUANTITIES, TABLES, Reproduction, Row, load_table, select_tables
from remnant.experiments.paper.reproduce import finished_results
from remnant.experiments.paper.tables import table_rows
from remnant.experiments.runs import RunFolder, RunResult
from remnant.options import OptionError

# Typed from the appendix's table, column "1 Epoch": acc, acc_sd, bwt, bwt_sd.
FLAT = ("sgp", "trgp", "dfgpm", "dfsgp", "dftrgp")
NEW = (*FLAT, "code-cl", "rogo", "dfrogo", "cuber", "fs-dgpm", "adam-nscl", "api", "wsn")
OWN_PARTS = ("trgp", "dftrgp", "code-cl", "cuber", "api", "wsn")
SUCCESSORS = {
    "pmnist": ("gpm", *(method for method in NEW if method not in OWN_PARTS), *OWN_PARTS),
    "split-cifar100": ("gpm", *(method for method in NEW if method not in OWN_PARTS), *OWN_PARTS),
    "five-datasets": ("gpm", "sgp", "dfgpm", "dfsgp", "dfrogo", *OWN_PARTS),
    "cifar100-superclass": ("gpm", "sgp", "dfsgp", "fs-dgpm", "trgp", "api", "wsn"),
    "split-tinyimagenet": ("gpm", "sgp", "dfgpm", "dfsgp", "trgp", "dftrgp", "code-cl", "api", "wsn"),
}
WITH_SGD = (
    *("gpm", "sgp", "trgp", "cuber", "dfgpm", "dfsgp", "dftrgp", "rogo", "dfrogo", "code-cl", "fs-dgpm", "api"),
    "remnant-recall",
)
ABLATIONS = {"permuted-digits": 6, "pmnist": 6, "split-cifar100": 4, "cifar100-superclass": 3}  # rows
WITH_ADAM = ("adam-nscl", "wsn")
FAIR = ("permuted-digits", "pmnist", "split-cifar100")


def with_sgd(benchmark: str) -> tuple[str, ...]:
    own_rows = ("rogo", "dfrogo", "remnant-recall") if benchmark == "split-cifar100" else ()
    return (*(method for method in WITH_SGD if method not in own_rows), *own_rows)


ONE_EPOCH = {
    "ogd": (85.18, 0.29, -0.06, 0.00),
    "owm": (90.55, 0.15, -0.01, 0.00),
    "gem": (88.65, 0.27, -0.07, 0.00),
    "agem": (87.80, 0.16, -0.08, 0.00),
    "er": (90.63, 0.27, -0.05, 0.00),
    "ewc": (88.27, 0.39, -0.04, 0.01),
    "gpm": (91.74, 0.15, -0.03, 0.00),
    "multitask": (95.21, 0.01, None, None),
}


def row(table: str, method: str, variant: str = "") -> Row:
    return next(r for r in load_table(table).rows if (r.method, r.variant) == (method, variant))


def line(table: str, method: str, results: dict[int, RunResult], variant: str = "") -> dict[str, str]:
    lines = table_rows(load_table(table), {row(table, method, variant).key: results})
    return next(found for found in lines if (found["method"], found["variant"]) == (method, variant))


@pytest.mark.parametrize("name", TABLES)
def test_every_row_can_be_run_or_has_the_paper_s_number(name: str) -> None:
    table = load_table(name)
    assert any(row.runnable for row in table.rows)
    assert set(table.columns) <= QUANTITIES.keys()
    for each in table.rows:
        assert each.runnable or each.paper.acc is not None
    keys = [each.key for each in table.rows if each.runnable]
    assert len(set(keys)) == len(keys)


def test_the_tables_have_the_rows_of_the_paper() -> None:
    runs = {name: [(r.benchmark, r.method) for r in load_table(name).rows if r.runnable] for name in TABLES}
    with_heads = ("ewc", "hat", "agem", "er", "gpm", "multitask")
    everyone = [("pmnist", method) for method in ONE_EPOCH]
    assert (
        runs
        == {
            "table1a": everyone,
            "table1b": [
                ("split-cifar100", "owm"),
                *(
                    (benchmark, method)
                    for benchmark in ("split-cifar100", "split-miniimagenet", "five-datasets")
                    for method in with_heads
                ),
                ("five-datasets", "gpm"),  # with Fashion-MNIST, as the paper describes it
            ],
            "table2": [
                *((benchmark, method) for benchmark, method in everyone if method != "multitask"),
                *(("split-cifar100", method) for method in ("owm", *with_heads[:-1])),
                *(
                    (benchmark, method)
                    for benchmark in ("split-miniimagenet", "five-datasets")
                    for method in with_heads[:-1]
                ),
            ],
            "table3": [("cifar100-superclass", method) for method in ("single-task", "pgn", "den", "rcl", "apd", "gpm")]
            * 2,
            "single-epoch": everyone,
            "class-incremental": [
                ("mnist-incremental", method)
                for method in ("ewc", "dgr", "dgdmn", "gpm", "analytic", "remnant-recall", "gpm")
            ],
            "related": [
                *(("pmnist", method) for method in ("si", "mas", "mega-i", "mega-ii", "mer")),
                *(
                    ("split-cifar100", method)
                    for method in ("si", "mas", "packnet", "space", "gem", "mega-i", "mega-ii", "icarl")
                ),
            ],
            "successors": [
                (benchmark, method)
                for benchmark, methods in SUCCESSORS.items()
                for method in (*methods, "remnant-recall")
            ],
            "ablations": [(benchmark, "remnant-recall") for benchmark, rows in ABLATIONS.items() for _ in range(rows)],
            "fair": [(benchmark, method) for benchmark in FAIR for method in (*with_sgd(benchmark), *WITH_ADAM)],
            "fair-lr": [
                (benchmark, method)
                for benchmark in FAIR
                for methods, rates in ((with_sgd(benchmark), 4), (WITH_ADAM, 3))
                for method in methods
                for _ in range(rates)
            ],
        }
    )


@pytest.mark.parametrize("benchmark", FAIR)
@pytest.mark.parametrize("table", ["fair", "fair-lr"])
def test_the_fair_tables_have_one_protocol_for_all(table: str, benchmark: str) -> None:
    settings = [r.settings for r in load_table(table).rows if r.benchmark == benchmark]
    first = settings[0]
    for each in settings:
        assert each.stream == first.stream
        assert each.training == first.training
        assert {"norm": "running", **each.network} == {"norm": "running", **first.network}
        assert each.protocol == "sane"
        assert benchmark != "split-cifar100" or each.options.get("anneal", each.method == "remnant-recall")


def test_learning_rates_to_try_have_rows_of_their_own() -> None:
    rates = [
        r.settings.options["lr"] for r in load_table("fair-lr").rows if (r.benchmark, r.method) == ("pmnist", "gpm")
    ]
    assert rates == [0.005, 0.01, 0.02, 0.05]
    assert row("fair-lr", "wsn", "lr 0.001").settings.options["lr"] == 0.001
    assert line("fair-lr", "gpm", {0: RunResult(0.9, validation_acc=0.91)}, "lr 0.05")["validation"] == "91.00"


def test_single_epoch_numbers() -> None:
    rows = load_table("single-epoch").rows
    assert {r.method: (r.paper.acc, r.paper.acc_sd, r.paper.bwt, r.paper.bwt_sd) for r in rows} == ONE_EPOCH
    assert row("single-epoch", "gpm", "1 epoch").settings.training["epochs"] == 1


def test_five_orders_share_a_row_and_two_layouts_do_not() -> None:
    published, planar = row("table3", "gpm", "as published"), row("table3", "gpm", "planar")
    assert published.settings.stream["order"] == "seed"
    assert published.key != planar.key
    assert (published.paper.acc, planar.paper.acc) == (57.72, None)


def test_the_two_fourth_sets_have_their_own_rows() -> None:
    published, described = (
        r for r in load_table("table1b").rows if r.method == "gpm" and r.benchmark == "five-datasets"
    )
    assert published.settings.stream["fourth"] == "as-published"
    assert published.key != described.key
    assert (published.paper.acc, described.paper.acc) == (91.22, None)


def test_mean_sd_and_difference() -> None:
    found = line(
        "table1a",
        "gpm",
        {0: RunResult(0.93, -0.03, seconds={"train": 10.0}), 1: RunResult(0.95, -0.05, seconds={"train": 20.0})},
    )
    assert found["seeds"] == "2"
    assert found["acc"] == "94.00 ± 1.41"  # of a sample: √2 points
    assert (found["acc (paper)"], found["acc (difference)"]) == ("93.91 ± 0.16", "+0.09")
    assert (found["bwt"], found["bwt (paper)"]) == ("-0.040 ± 0.014", "-0.03 ± 0.00")
    assert found["bwt (difference)"] == "-0.010"
    assert (found["seconds"], found["seconds (paper)"]) == ("15 ± 7", "245")
    assert "seconds (difference)" not in found


def test_one_seed_has_no_sd() -> None:
    assert line("table1a", "gpm", {3: RunResult(0.9391, -0.0001)})["acc"] == "93.91"


def test_no_negative_zero() -> None:
    found = line("table1a", "gpm", {3: RunResult(0.939099, -0.0001)})
    assert (found["acc (difference)"], found["bwt"]) == ("+0.00", "0.000")


def test_what_was_not_run_is_never_a_number() -> None:
    for name in TABLES:
        for found in table_rows(load_table(name), {}):
            assert found["seeds"] == "0"
            for column in load_table(name).columns:
                assert found[column] == "not run"
                assert found.get(f"{column} (difference)", "–") == "–"


def test_results_of_other_settings_are_not_taken() -> None:
    table = load_table("table1a")
    single = row("single-epoch", "gpm", "1 epoch").key
    assert all(found["seeds"] == "0" for found in table_rows(table, {single: {0: RunResult(0.9)}}))


@pytest.mark.parametrize("undefined", [nan, None])
def test_undefined_figures_stay_out(undefined: float | None) -> None:
    found = line("table1a", "multitask", {0: RunResult(0.967, undefined), 1: RunResult(0.967, undefined)})
    assert (found["acc"], found["bwt"], found["bwt (difference)"]) == ("96.70 ± 0.00", "–", "–")
    # A mean over fewer runs than the row counts would mislead.
    assert line("table1a", "gpm", {0: RunResult(0.9, -0.1), 1: RunResult(0.9, undefined)})["bwt"] == "–"


def saved(root: Path, seed: int, acc: float) -> RunFolder:
    run = RunFolder.create(root, resolve("pmnist", "gpm"), seed)
    run.save_matrix(AccuracyMatrix(1, [[acc]]))
    run.save_result({"acc": acc, "bwt": None, "seconds": {"train": 1.0}})
    return run


def test_a_seed_in_two_folders_counts_once(tmp_path: Path) -> None:
    kept, runs = tmp_path / "results", tmp_path / "runs"
    for root, seed, acc in ((kept, 0, 0.93), (runs, 0, 0.5), (runs, 1, 0.95)):
        saved(root, seed, acc)
    (table,) = select_tables("table1a", ["gpm"])
    (found,) = Reproduction(table, runs, kept).rows()
    assert (found["seeds"], found["acc"]) == ("2", "94.00 ± 1.41")


def test_the_missing_seeds_are_planned_and_a_contradictory_result_is_named(tmp_path: Path) -> None:
    saved(tmp_path, 0, 0.9)
    saved(tmp_path, 2, 0.9).save_result({"acc": 0.8, "seconds": {}})
    (table,) = select_tables("table1a", ["gpm"])
    plans, (problem,) = Reproduction(table, tmp_path, tmp_path / "none").missing((0, 1, 2), "cpu", 0, "ray")
    assert [(plan.seeds, plan.on) for plan in plans] == [((1, 2), "ray")]  # type: ignore[union-attr]
    assert "result.json says ACC 0.8000, but accuracy.csv gives 0.9000" in problem
    assert [seeds.keys() for seeds in finished_results([tmp_path])[0].values()] == [{0}]


def test_capacity_in_per_cent() -> None:
    found = line("table3", "single-task", {0: RunResult(0.61, capacity=20.0)}, "as published")
    assert (found["capacity"], found["capacity (paper)"], found["capacity (difference)"]) == ("2000", "2000", "+0")


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"No table called 'table1'. Did you mean 'table1"):
        load_table("table1")
    with pytest.raises(OptionError, match=r"table1a has no method 'gpn'. Did you mean 'gpm'\?"):
        select_tables("table1a", ["gpn"])
    with pytest.raises(OptionError, match=r"all has no benchmark 'pmnst'. Did you mean 'pmnist'\?"):
        select_tables("all", [], ["pmnst"])


def test_all_stands_for_every_table_and_rows_are_chosen_by_name() -> None:
    assert [table.name for table in select_tables("all")] == [name for name in TABLES if name != "fair-lr"]
    assert [table.name for table in select_tables("all", ["hat"])] == ["table1b", "table2"]
    assert [row.method for row in select_tables("table1b", ["gpm"])[0].rows if row.runnable] == ["gpm"] * 4
