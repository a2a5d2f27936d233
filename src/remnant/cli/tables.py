"""Prints tables on a terminal."""

from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .app import out, print_text


def print_rows(
    title: str,
    rows: Sequence[Mapping[str, str]],
    text: Sequence[str] = (),
    style: Callable[[str], str] = lambda cell: "",
) -> None:
    """Prints rows of cells by heading, without empty columns. `text` names the columns to align to the left.

    A heading such as `acc (paper)` takes two lines, so that its column stays as narrow as its numbers. `style` gives the
    colour of a cell. On a narrow terminal text wraps, but numbers and the first column are never cut short.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    for name in names:
        heading = name.replace(" (", "\n(")
        whole = max(cell_len(cell) for cell in (*heading.splitlines(), *(row[name] for row in rows)))
        wraps = name in text and name != names[0]
        table.add_column(heading, justify="left" if name in text else "right", min_width=None if wraps else whole)
    for row in rows:
        table.add_row(*(Text(row[name], style(row[name])) for name in names))
    least, most = table.__rich_measure__(out, out.options.update(max_width=10_000))
    width = out.width if least <= out.width else most
    if title:
        print_text(title, style="italic")
    Console(file=out.file, width=width, force_terminal=out.is_terminal, highlight=False).print(table)
