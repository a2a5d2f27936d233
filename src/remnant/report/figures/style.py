"""How figures look: colours that survive colour-blindness, a marker and a dash for each, and no colour for what is ink."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..names import METHODS

INK = "#1b1b1f"  # becomes the colour of the text around it
FAINT = "#80808a"  # readable on white and on black
# Okabe & Ito's, without their yellow, which white swallows, and with ink for their black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))

ROWS, ROW = 2, 0.21  # of a legend: how many a figure has room for, and how high, in inches, each further one is

# Those most often seen together, in order: they have the most different looks.
FIRST = ("gpm", "ewc", "er", "agem", "hat", "owm", "multitask", "ogd", "gem", "finetune", "single-task")

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same widths everywhere
    "font.size": 11,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.facecolor": "none",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",
    "svg.hashsalt": "remnant",  # the same figure, the same bytes
    "figure.dpi": 100,
}


class Look(NamedTuple):
    colour: str
    marker: str
    dash: Any


def look(number: int) -> Look:
    """The same number, the same look; no two of the first 77 share both colour and marker."""
    return Look(COLOURS[number % 7], MARKERS[number % 11], DASHES[number // 7 % 4])


def method_look(method: str) -> Look:
    """A method looks the same in every figure."""
    known = [*FIRST, *(name for name in METHODS if name not in FIRST)]
    return look(known.index(method) if method in known else len(known) + sum(method.encode()) % 57)


def canvas(width: float = 4.8, height: float = 3.5, **options: Any) -> tuple[Figure, Axes]:
    """A figure with one plot; no pyplot, so nothing global is touched."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**options)


def styled() -> AbstractContextManager[None]:
    """A context in which our style holds, whatever the user's matplotlibrc says."""
    context: AbstractContextManager[None] = style.context(["default", RC])
    return context


def legend_below(figure: Figure, axes: Axes) -> None:
    """Under the plot, in as many columns as its longest label leaves room for; many rows make the figure taller."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        points = 72 * figure.get_figwidth()
        columns = int(points // (50 + 5.8 * max(map(len, labels))))  # line, gaps, and the letters' mean width
        columns = min(max(columns, 1), len(labels))
        rows = -(-len(labels) // columns)
        figure.set_figheight(figure.get_figheight() + ROW * max(rows - ROWS, 0))
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=columns,
            handlelength=2.6,
            columnspacing=1.2,
        )
