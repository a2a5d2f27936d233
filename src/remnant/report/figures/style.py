"""The look of figures: colours for the colour-blind, a marker and a dash for each line, and labels for methods."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_params_from_file, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..names import TITLES, short_title
from ..variants import Variant

RC: Any = rc_params_from_file(Path(__file__).parent / "remnant.mplstyle", use_default_template=False)
INK: str = RC["text.color"]
FAINT: str = RC["grid.color"]
# The palette of Okabe and Ito, with ink for black, and without yellow, which is invisible on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))
REFERENCE: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 3))}  # for a line that marks a value

# These methods are often shown together, so they get the most different looks.
FIRST = ("gpm", "ewc", "er", "agem", "hat", "owm", "multitask", "ogd", "gem", "finetune", "single-task")

LEGEND_ROWS, ROW_HEIGHT = 2, 0.21  # a figure has room for two rows, and grows by so many inches for each other one


class Look(NamedTuple):
    colour: str
    marker: str
    dash: Any


def look(number: int) -> Look:
    """The look of a line. The first 77 differ in colour or marker."""
    return Look(COLOURS[number % 7], MARKERS[number % 11], DASHES[number // 7 % 4])


def method_look(method: str) -> Look:
    """The look of a method, which is the same in every figure."""
    order = [*FIRST, *(name for name in TITLES["methods"] if name not in FIRST)]
    return look(order.index(method) if method in order else len(order) + sum(method.encode()) % 57)


def label(variant: Variant) -> str:
    """The method's name, with a star if its settings are not the recipe's."""
    return short_title(variant.method) + ("" if variant.as_in_recipe else " *")


def label_with_seeds(variant: Variant) -> str:
    """For figures with deviations: without this note, one seed would look like seeds that agree."""
    return label(variant) + (" (one seed)" if len(variant.runs) == 1 else "")


def footnote(variants: Iterable[Variant]) -> str:
    """Explains the stars of `label`; empty if there are none."""
    others = [f"{short_title(variant.method)}: {variant.label}" for variant in variants if not variant.as_in_recipe]
    return f"* Not the recipe's settings. {'; '.join(others)}." if others else ""


def canvas(width: float = 4.8, height: float = 3.5, **options: Any) -> tuple[Figure, Any]:
    """A figure with one plot (or `nrows=…`). It does not use pyplot, so no global state changes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**options)


def styled() -> AbstractContextManager[None]:
    """Uses our style inside a `with` block, whatever the user's matplotlibrc says."""
    context: AbstractContextManager[None] = style.context(["default", RC])
    return context


def legend_below(figure: Figure, axes: Axes) -> None:
    """Puts the legend under the plot, in as many columns as fit; the figure grows with its rows."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        width = 72 * figure.get_figwidth()
        columns = int(width // (50 + 5.8 * max(map(len, labels))))  # line and gaps, and the mean width of a letter
        columns = min(max(columns, 1), len(labels))
        rows = -(-len(labels) // columns)
        figure.set_figheight(figure.get_figheight() + ROW_HEIGHT * max(rows - LEGEND_ROWS, 0))
        spacing = {"handlelength": 2.6, "columnspacing": 1.2}
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, **spacing)
