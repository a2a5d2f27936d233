"""A grid as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

from .grid import Cell, Grid, Number, cell_text


def markdown(grid: Grid) -> str:
    """The table alone; a cell is text, whatever is in it."""
    lines = [
        _line(escape_markdown(column.whole) for column in grid.columns),
        _line("---" if column.words else "---:" for column in grid.columns),
        *(_line(escape_markdown(cell_text(cell)) for cell in row) for row in grid.rows),
    ]
    return "\n".join(lines) + "\n"


def to_csv(grid: Grid) -> str:
    """Numbers as programs read them, a mean and its deviation in columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header: list[str] = []
    for column in grid.columns:
        header += [column.whole, f"{column.whole} sd"] if column.spread else [column.whole]
    writer.writerow(header)
    for row in grid.rows:
        cells: list[str] = []
        for column, cell in zip(grid.columns, row, strict=True):
            mean, sd = cell.plain if isinstance(cell, Number) else (_inert(cell), "")
            cells += [mean, sd] if column.spread else [mean]
        writer.writerow(cells)
    return text.getvalue()


def latex(grid: Grid) -> str:
    r"""A `tabular` with booktabs' rules, to \input into a paper."""
    align = "".join("l" if column.words else "r" for column in grid.columns)
    head = " & ".join(escape_latex(column.whole) for column in grid.columns)
    body = [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in grid.rows]
    lines = [
        f"% {' '.join(grid.title.split())}",
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escape_markdown(text: str) -> str:
    """No markup, no HTML, no new column and no new line out of a name."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)


def _inert(text: str) -> str:
    """A name that begins like a formula must not run as one in a spreadsheet."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _latex_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return escape_latex(cell)
    mean, sd = cell.plain
    return f"${mean}$" if not sd else rf"${mean} \pm {sd}$"


LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "±": r"$\pm$",
    "−": "$-$",
    "ε": r"$\varepsilon$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def escape_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))
