"""The page: one file, nothing fetched, everything escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from remnant import __version__

from .content import Content
from .figures import Drawing
from .grid import Grid, cell_text
from .verdict import BETTER, CANNOT_SAY, EXPLANATION, WITHIN, WORSE

SYMBOLS = {WITHIN: "●", BETTER: "▲", WORSE: "▼", CANNOT_SAY: "?"}
OPEN_TABLES = ("table1a", "table1b", "training-time", "table3", "single-epoch", "class-incremental")


def render_page(content: Content, svgs: Mapping[str, str]) -> str:
    """`svgs` are the drawings of `content`, by name."""
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["text"] = cell_text
    environment.globals["groups"] = header_groups
    page = environment.get_template("index.html.jinja").render(
        content=content,
        svg=_Inliner(svgs),
        style=Markup(_template("style.css")),
        script=Markup(_template("script.js")),
        symbols=SYMBOLS,
        explanation=EXPLANATION,
        open_tables=OPEN_TABLES,
        version=__version__,
    )
    return re.sub(r"\n\s*\n+", "\n", page)


def header_groups(grid: Grid) -> list[tuple[str, int]]:
    """Headings over headings, with how many columns each spans; empty where there are none."""
    spans: list[tuple[str, int]] = []
    for column in grid.columns:
        if spans and spans[-1][0] == column.group and column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return spans if any(group for group, _ in spans) else []


class _Inliner:
    """SVG for the page. A figure shown twice gets ids of its own each time."""

    def __init__(self, svgs: Mapping[str, str]) -> None:
        self._svgs = svgs
        self._shown: dict[str, int] = {}

    def __call__(self, drawing: Drawing) -> Markup:
        name = drawing.name
        times = self._shown[name] = self._shown.get(name, 0) + 1
        svg = re.sub(r"<style>.*?</style>", "", self._svgs[name], count=1)  # the page has its own
        return Markup(svg if times == 1 else re.sub(rf'(id="|#){re.escape(name)}-', rf"\g<1>{name}-{times}-", svg))


def _template(name: str) -> str:
    return (files("remnant.report") / "templates" / name).read_text(encoding="utf-8")
