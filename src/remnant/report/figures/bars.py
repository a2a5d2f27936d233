"""Lying bars, one a method, with its number; on a logarithmic axis where they differ too much for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from .style import FAINT, INK, canvas, method_look

TOO_FAR = 30.0  # the largest may be so many times the smallest before the axis turns logarithmic


def bars(
    rows: Sequence[Mapping[str, Any]], label: str, *, reference: float, paper: Mapping[str, float | None] | None = None
) -> Figure:
    figure, axes = canvas(height=0.9 + 0.36 * len(rows))
    values = [row["value"] for row in rows]
    positive = [value for value in values if value > 0]
    marks = {method: value for method, value in (paper or {}).items() if value is not None}
    for at, row in enumerate(rows):
        look = method_look(row["method"])
        axes.barh(at, row["value"], height=0.62, color=look.colour, edgecolor=INK, linewidth=0.6)
        mark = marks.get(row["method"])
        if mark is not None:
            axes.plot(mark, at, marker="D", color="none", markeredgecolor=INK, markersize=7, linestyle="none")
        place: dict[str, Any] = {"textcoords": "offset points", "xytext": (4, 0), "va": "center", "fontsize": 9.5}
        if mark is not None and mark > row["value"]:  # after both, or it would lie on the mark
            place["xytext"] = (9, 0)
            axes.annotate(f"{_short(row['value'])}, paper {_short(mark)}", (mark, at), **place)
        elif row["value"]:
            axes.annotate(_short(row["value"]), (row["value"], at), **place)
        else:  # from the axis on: a logarithmic one has no zero
            axes.annotate("keeps nothing", (0, at), xycoords=("axes fraction", "data"), **place)
    axes.axvline(reference, color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    if max(positive) / min(positive) > TOO_FAR:
        axes.set_xscale("log")
        axes.set_xlim(min(positive) / 3, max([*positive, reference]) * 8)
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, max([*values, *marks.values(), reference]) * 1.22)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{label} (◇ paper)" if marks else label)
    return figure


def _short(value: float) -> str:
    """Two digits at least, and no more than say something."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
