"""Tables and their cells, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from made_up import HOSTILE, run, settings

from remnant.evaluation import Spread
from remnant.experiments.paper import NOT_RUN, save_timings
from remnant.experiments.settings import resolve
from remnant.report.content import Content, make_content
from remnant.report.grid import Column, Grid, Number, to_csv
from remnant.report.page import render
from remnant.report.tables import NOT_TIMED, PAPER_RANKS


def grid(content: Content, name: str) -> Grid:
    return next(found for found in content.grids if found.name == name)


def row(found: Grid, *first: str) -> dict[str, str]:
    headings = [column.full_heading for column in found.columns]
    rows = [dict(zip(headings, map(str, cells), strict=True)) for cells in found.rows]
    return next(cells for cells in rows if list(cells.values())[: len(first)] == list(first))


def test_all_tables_are_there(content: Content) -> None:
    names = [found.name for found in content.grids]
    assert names[:6] == ["table1a", "table1b", "training-time", "table3", "single-epoch", "class-incremental"]
    assert {"ranks-pmnist", "ranks-split-cifar100", "everything"} <= set(names)


def test_ours_beside_the_papers_with_a_mark(content: Content) -> None:
    found = row(grid(content, "table1a"), "GPM")
    assert found["ACC % ours"] == "93.33 ± 1.00"
    assert found["ACC % paper"] == "93.91 ± 0.16"
    assert (found["ACC % difference"], found["ACC % mark"]) == ("−0.58", "within")
    assert found["seeds"] == "3"  # neither the unfinished seed nor the other settings


def test_one_table_shows_one_epoch_and_five(content: Content) -> None:
    found = grid(content, "single-epoch")
    assert row(found, "GPM", "1 epoch")["ACC % ours"] == "90.00"  # one seed: no deviation
    assert row(found, "GPM", "5 epochs")["ACC % ours"] == "93.33 ± 1.00"


def test_a_missing_run_is_never_a_number(tmp_path: Path) -> None:
    run(tmp_path, settings("permuted-digits", "finetune"), 0)  # of no table in the paper
    for found in make_content([tmp_path]).grids:
        for cells in found.rows:
            for column, cell in zip(found.columns, cells, strict=True):
                if column.heading in ("ours", "total") and "paper" not in cells:
                    assert cell in (NOT_RUN, NOT_TIMED)


def test_times_name_their_device_and_carry_no_mark(content: Content) -> None:
    found = row(grid(content, "training-time"), "Permuted MNIST", "GPM")
    assert (found["seconds ours"], found["seconds paper"], found["our device"]) == ("12 ± 0", "245", "Made-up GPU")
    assert not any(key.endswith(" mark") for key in found)


def test_times_relative_to_gpm_are_those_of_one_process(tmp_path: Path) -> None:
    methods = {
        name: {"digest": resolve("pmnist", name).digest, "epochs": [seconds], "finish": 0.0}
        for name, seconds in (("gpm", 2.0), ("ewc", 3.0))
    }
    save_timings(tmp_path, "pmnist", {"environment": {"device": "a device"}, "methods": methods})
    found = grid(make_content([tmp_path]), "training-time")
    ewc, er = (row(found, "Permuted MNIST", method) for method in ("EWC", "ER"))
    assert (ewc["relative to GPM ours"], ewc["relative to GPM paper"]) == ("1.50", "2.63")
    assert er["relative to GPM ours"] == NOT_TIMED


def test_a_remark_names_methods_that_ran_with_other_settings(content: Content) -> None:
    (remark,) = grid(content, "table1b").remarks
    assert remark.startswith("GPM on 10-split CIFAR-100 was run with other settings")


def test_ranks_add_up_to_the_papers_totals() -> None:
    totals = {benchmark: [sum(added) for added in layers.values()] for benchmark, layers in PAPER_RANKS.items()}
    assert totals == {"pmnist": [543, 100, 88], "split-cifar100": [22, 417, 473, 769, 1012]}


def test_ranks_per_layer_and_task_with_total_and_capacity(content: Content) -> None:
    found = row(grid(content, "ranks-pmnist"), "hidden.0", "ours")
    assert (found["task 1"], found["task 3"], found["task 4"]) == ("80.0", "60.0", "–")
    assert (found["total"], found["capacity n"]) == ("210.0 ± 0.0", "784")


def test_everything_names_settings_and_unfinished_seeds(content: Content) -> None:
    rows = grid(content, "everything").rows
    gpm = [[str(cell) for cell in cells] for cells in rows if cells[:2] == ("Permuted MNIST", "GPM")]
    assert [(cells[2], cells[6]) for cells in gpm] == [
        ("as in the recipe", "3 + 1 unfinished"),
        ("training.epochs=1", "1"),
    ]


@pytest.mark.parametrize("value", [-0.0001, 0.0])
def test_no_negative_zero(value: float) -> None:
    assert str(Number(Spread(value))) == "0.00"
    assert str(Number(Spread(-1.5, 0.25))) == "−1.50 ± 0.25"


ODD = Grid(
    "odd",
    "Odd",
    (Column("name", text=True), Column("value", spread=True)),
    ((HOSTILE + "|_*\n=1", Number(Spread(-1.0, 0.5))),),
)


def test_names_are_text_in_markdown() -> None:
    lines = render("table.md.jinja", grid=ODD).splitlines()
    assert len(lines) == 3
    assert "<" not in lines[2]
    assert lines[2].replace(r"\|", "").count("|") == 3


def test_csv_keeps_means_and_deviations_apart() -> None:
    header, cells = csv.reader(io.StringIO(to_csv(ODD)))
    assert header == ["name", "value", "value sd"]
    assert cells[1:] == ["-1.00", "0.50"]


def test_a_name_is_no_formula_in_a_spreadsheet() -> None:
    odd = Grid("odd", "Odd", (Column("name", text=True),), (("=1+1",), ("–",)))
    assert to_csv(odd).splitlines()[1:] == ["'=1+1", "–"]


def test_names_are_text_in_latex() -> None:
    cells = ((r"50 % \of {#} $x$ & ~^",), (Number(Spread(-1.0, 0.5)),))
    text = render("table.tex.jinja", grid=Grid("odd", "Odd\nnews", (Column("a_b", text=True),), cells))
    assert r"50 \% \textbackslash{}of \{\#\} \$x\$ \& \textasciitilde{}\textasciicircum{} \\" in text
    assert r"$-1.00 \pm 0.50$ \\" in text
    assert text.splitlines()[0] == "% Odd news"


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    run(tmp_path, settings("pmnist", "gpm"), 0, (0.9, 0.9))
    content = make_content([tmp_path])
    assert row(grid(content, "table1a"), "GPM")["ACC % ours"] == "90.00"
    assert "One seed: cannot say how sure." in content.cards["pmnist"]
