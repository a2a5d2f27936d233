"""The pages of a report: index.html, which loads nothing and escapes everything, and docs/results.md."""

import re
from collections.abc import Mapping
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from remnant import __version__

from .content import Content
from .figures import Drawing
from .grid import ABSENT, Grid, cell_text, escape_markdown, markdown
from .ranks import PAPER_RANKS
from .statistics import BETTER, CANNOT_SAY, EXPLANATION, WITHIN, WORSE

SYMBOLS = {WITHIN: "●", BETTER: "▲", WORSE: "▼", CANNOT_SAY: "?"}
OPEN_TABLES = ("table1a", "table1b", "training-time", "table3", "single-epoch", "class-incremental")
NOTES = "results-notes.md"
DOCS_COMMAND = "remnant report results -o report --docs docs"
# The names of these files never change, so that README.md can show them: file → start of a drawing's name.
DOCS_FIGURES = {
    "first-task-pmnist": "first-task-pmnist",
    "first-task-split-cifar100": "first-task-split-cifar100",
    "trade-off-split-cifar100": "trade-off-split-cifar100",
    "ranks-split-cifar100": "ranks-split-cifar100-gpm-",
}


def render_page(content: Content, svgs: Mapping[str, str]) -> str:
    """Renders index.html. `svgs` are the drawings of `content` by name."""
    static = {name: Markup(_template(file)) for name, file in (("style", "style.css"), ("script", "script.js"))}
    functions = {"svg": _InlineSvg(svgs), "groups": header_groups}
    constants = {"symbols": SYMBOLS, "absent": ABSENT, "open_tables": OPEN_TABLES, "version": __version__}
    page = _render("index.html.jinja", content, autoescape=True, **static, **functions, **constants)
    return re.sub(r"\n\s*\n+", "\n", page)


def render_docs(content: Content, notes: str) -> str:
    """Renders results.md: the tables that the paper has, some figures, and the notes that people wrote."""
    reading = content.collection.reading
    damaged = [f"{run.path} is left out: {run.problem}" for run in reading.damaged]
    unfinished = [f"Unfinished: {line}" for line in content.unfinished]
    remarks = [*content.kept_apart, *damaged, *unfinished, *reading.remarks]
    paper = [f"ranks-{benchmark}" for benchmark in PAPER_RANKS]
    grids = [g for g in content.grids if g.rows and (g.name in paper or not g.name.startswith("ranks-"))]
    values = {"command": DOCS_COMMAND, "notes_file": NOTES, "figures": docs_figures(content), "grids": grids}
    page = _render("results.md.jinja", content, autoescape=False, **values, remarks=remarks)
    return page.rstrip() + "\n" + (f"\n{notes.strip()}\n" if notes.strip() else "")


def docs_figures(content: Content) -> dict[str, Drawing]:
    """The figures of results.md, by the name of their file without its ending."""
    drawings = [drawing for section in content.sections for drawing in section.drawings]
    found = {name: [d for d in drawings if d.name.startswith(start)] for name, start in DOCS_FIGURES.items()}
    return {name: matching[0] for name, matching in found.items() if matching}


def header_groups(grid: Grid) -> list[tuple[str, int]]:
    """The headings above headings, and how many columns each spans; empty if there are none."""
    if not any(column.group for column in grid.columns):
        return []
    # Columns without a group stay apart, so that each has its own empty cell.
    keys = ((column.group, 0 if column.group else number) for number, column in enumerate(grid.columns))
    return [(group, len(list(columns))) for (group, _), columns in groupby(keys)]


class _InlineSvg:
    """Puts drawings into the page. A figure that is shown twice gets its own ids each time."""

    def __init__(self, svgs: Mapping[str, str]) -> None:
        self._svgs = svgs
        self._shown: dict[str, int] = {}

    def __call__(self, drawing: Drawing) -> Markup:
        name = drawing.name
        times = self._shown[name] = self._shown.get(name, 0) + 1
        svg = re.sub(r"<style>.*?</style>", "", self._svgs[name], count=1)  # the page has its own style
        return Markup(svg if times == 1 else re.sub(rf'(id="|#){re.escape(name)}-', rf"\g<1>{name}-{times}-", svg))


def _render(template: str, content: Content, *, autoescape: bool, **values: Any) -> str:
    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FunctionLoader(_template), autoescape=autoescape, **options)
    environment.filters |= {"text": cell_text, "escaped": escape_markdown, "markdown": markdown}
    return environment.get_template(template).render(content=content, explanation=EXPLANATION, **values)


def _template(name: str) -> str:
    return (files("remnant.report") / "templates" / name).read_text(encoding="utf-8")
