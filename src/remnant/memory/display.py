"""How a memory shows itself: a short table in a terminal or in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .gpm import GPM

LAYERS = 20  # at most


def text(memory: GPM) -> str:
    report = memory.report()
    heading, *lines = str(report).split("\n")
    more = len(report.layers) - LAYERS
    if more > 0:
        lines[LAYERS : len(report.layers)] = [f"… and {more} more; print(memory.report()) shows all."]
    return "\n".join([f"GPM of {type(memory._model).__name__}", heading, *lines])


def html(memory: GPM) -> str:
    report = memory.report()
    rows = [("layer", "capacity", "rank", "used", "added per task")]
    for layer in report.layers[:LAYERS]:
        added = " ".join(map(str, layer.added)) or "–"
        rows.append((layer.name, str(layer.capacity), str(layer.rank), f"{layer.share:.0%}", added))
    first, *others = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    table = "".join(f"<tr>{row}</tr>" for row in [first.replace("td>", "th>"), *others])
    notes = text(memory).split("\n")[len(rows) + 1 :]
    title = f"<b>GPM</b> of {escape(type(memory._model).__name__)}"
    return f"<div>{title}<table>{table}</table>{''.join(f'<div>{escape(note)}</div>' for note in notes)}</div>"
