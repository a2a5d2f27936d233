"""The progress of runs, on a terminal and in a log."""

from __future__ import annotations

import io
import re

from rich.console import Console

from remnant.cli.progress import show_progress
from remnant.experiments.execute import Progress
from remnant.training import EpochDone

EPOCH = EpochDone(
    task=1, epoch=1, epochs=1, loss=0.5, valid_loss=0.5, valid_accuracy=0.9, lr=0.1, steps=10, seconds=0.1
)


def shown(*progress: Progress, terminal: bool = False, quiet: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with show_progress(console, quiet=quiet, title="a title") as watch:
        for each in progress:
            watch(each)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_last_line_shows_elapsed_instead_of_remaining_time() -> None:
    text = shown(Progress(3, 1, 2, epoch=EPOCH), Progress(3, 1, 2, finished=True, seconds=14.2))
    assert (
        text.splitlines()[-1] == "seed 3: task 2/2  epoch done  loss 0.500  accuracy val 90.0 %  steps/s 100  took 14 s"
    )


def test_on_a_terminal_elapsed_time_is_in_the_column_of_remaining_time() -> None:
    text = shown(
        Progress(3, 1, 2, epoch=EPOCH), Progress(3, 1, 2, finished=True, seconds=14.2), Progress(4, 0, 2), terminal=True
    )
    assert re.search(r"3 +2/2 +done +0\.500 +val 90\.0 % +100 +took 14 s", text)


def test_long_durations_are_in_minutes() -> None:
    assert shown(Progress(0, 1, 2, finished=True, seconds=3600.0)).endswith("took 60 min\n")


def test_a_note_about_a_run_that_is_not_under_way_adds_no_row() -> None:
    text = shown(Progress(5, note="a note"), Progress(3, 0, 2), terminal=True)
    assert "seed 5: a note" in text
    assert re.search(r"\b3 +1/2", text)
    assert "1/0" not in text


def test_quiet_shows_only_serious_notes() -> None:
    text = shown(
        Progress(3, 0, 2, note="resumed"),
        Progress(3, 0, 2, note="no whole checkpoint is left", serious=True),
        Progress(3, 1, 2, epoch=EPOCH),
        Progress(3, 1, 2, finished=True, seconds=14.2),
        quiet=True,
    )
    assert text == "a title\nseed 3: no whole checkpoint is left\n"


def test_several_plans_share_a_table_that_keeps_what_is_under_way() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with show_progress(console, quiet=False, title="a title") as watch:
        watch(Progress(0, 0, 2, epoch=EPOCH), name="gpm")
        watch(Progress(0, 0, 2, epoch=EPOCH), name="er")
        watch(Progress(0, 1, 2, finished=True, seconds=3.0), name="er")
    assert isinstance(console.file, io.StringIO)
    text = re.sub(r"\x1b\[[\d;?]*\w", "", console.file.getvalue())  # without colours
    last = text.rpartition("a title")[2]
    assert re.search(r"run +seed +task", last)
    assert re.search(r"gpm +0 +1/2", last)
    assert not re.search(r"er +0 +", last)
    assert "er, seed 0: task 2/2  epoch done" in text
