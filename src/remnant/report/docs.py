"""The project's own page of results: tables and figures from results/, and the words somebody wrote about them."""

from __future__ import annotations

from pathlib import Path

from .content import Content
from .figures import Drawing
from .formats import escape_markdown, markdown
from .rank_tables import paper_ranks
from .verdict import EXPLANATION

PAGE, NOTES, FIGURES = "results.md", "results-notes.md", "figures"
COMMAND = "remnant report results -o report --docs docs"
# Under names that stay, so that README.md and others can show them: file → how a drawing's name begins.
SHOWN = {
    "first-task-pmnist": "first-task-pmnist",
    "first-task-split-cifar100": "first-task-split-cifar100",
    "trade-off-split-cifar100": "trade-off-split-cifar100",
    "ranks-split-cifar100": "ranks-split-cifar100-gpm-",
}


def docs_figures(content: Content) -> dict[str, Drawing]:
    """File name (without ending) → drawing. Of several sets of settings, the one the report's sections show."""
    drawings = [drawing for section in content.sections for drawing in section.drawings]
    found = {}
    for name, begins in SHOWN.items():
        drawing = next((drawing for drawing in drawings if drawing.name.startswith(begins)), None)
        if drawing is not None:
            found[name] = drawing
    return found


def docs_page(content: Content, notes: str) -> str:
    """results.md. `notes` is what follows the tables, written by hand."""
    lines = [
        "# Results",
        "",
        f"<!-- Made by `{COMMAND}` from results/ and {NOTES}: edit those. A test fails when this is out of date. -->",
        "",
        "Tables and figures are of `results/` (matrices, settings, ranks, timings); mean ± standard deviation over seeds.",
        f"`{COMMAND}` makes this page again, and `report/index.html` with all the figures.",
        "",
        "## In short",
        "",
        *_summary(content),
        "",
        *_figures(content),
        "## Tables",
        "",
        EXPLANATION,
        "",
    ]
    for grid in content.grids:
        if grid.rows and (not grid.name.startswith("ranks-") or grid.name.removeprefix("ranks-") in paper_ranks()):
            lines += [
                f"### {grid.title}",
                "",
                markdown(grid),
                *(f"{escape_markdown(remark)}\n" for remark in grid.remarks),
            ]
    lines += _remarks(content)
    return "\n".join(lines).rstrip() + "\n" + (f"\n{notes.strip()}\n" if notes.strip() else "")


def read_notes(docs: Path) -> str:
    path = docs / NOTES
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _summary(content: Content) -> list[str]:
    lines = []
    for card in content.cards:
        words = [f"{card.winner}, {card.acc} ({card.seeds})."] if card.winner else []
        words += [part for part in (card.margin, card.sure, card.paper, f"{card.bound}." if card.bound else "") if part]
        lines.append(f"- **{escape_markdown(card.title)}**: {escape_markdown(' '.join(words))}")
    return lines or ["Nothing was run yet."]


def _figures(content: Content) -> list[str]:
    lines = []
    for name, drawing in docs_figures(content).items():
        alt = escape_markdown(drawing.alt)
        caption = f"*{escape_markdown(drawing.title)}.* {escape_markdown(drawing.remark)}".rstrip()
        lines += [f"![{alt}]({FIGURES}/{name}.svg)", "", caption, ""]
    return lines


def _remarks(content: Content) -> list[str]:
    reading = content.collection.reading
    damaged = [f"{run.place} is left out: {run.why}" for run in reading.damaged]
    said = [*content.kept_apart, *damaged, *(f"Unfinished: {line}" for line in content.unfinished), *reading.remarks]
    return ["## Of the runs", "", *(f"- {escape_markdown(line)}" for line in said), ""] if said else []
