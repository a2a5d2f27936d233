"""Writes a report: index.html, which loads nothing and escapes everything, the files beside it, and docs/results.md.

The same runs give the same bytes, so anyone can check whether a report is out of date.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from remnant import __version__
from remnant.files import explained, write

from .content import Content, make_content
from .figures import Drawing
from .grid import Grid, cell_text, escape_markdown, latex_cell, number, to_csv
from .names import benchmark_title, method_title
from .tables import PAPER_RANKS
from .variants import flatten

INDEX, NOTES, WRITTEN = "index.html", "results-notes.md", ".written-by-remnant-report.json"
# Names of files, which never change, so that README.md can show them. The names of their drawings start with them.
DOCS_FIGURES = ("first-task-pmnist", "first-task-split-cifar100", "trade-off-split-cifar100", "ranks-split-cifar100")


def write_report(roots: Sequence[Path], target: Path, docs: Path | None = None) -> Content:
    content = make_content(roots)
    drawn = {name: drawing.render() for name, drawing in content.drawings.items()}
    svgs = {name: svg for name, (svg, _) in drawn.items()}
    contents: dict[str, bytes] = {INDEX: render_page(content, svgs).encode()}
    for name, (svg, png) in drawn.items():
        contents |= {f"figures/{name}.svg": svg.encode(), f"figures/{name}.png": png}
    for grid in content.grids:
        texts = {"md": f"# {grid.title}\n\n{to_markdown(grid)}", "csv": to_csv(grid), "tex": to_latex(grid)}
        contents |= {f"tables/{grid.name}.{ending}": text.encode() for ending, text in texts.items()}
    _replace(target, contents)
    if docs is not None:
        _write_docs(content, docs, svgs)
    return content


def _replace(target: Path, contents: Mapping[str, bytes]) -> None:
    """Writes the files, and removes those that only the previous report had. Other files are not touched."""
    with explained(target / INDEX):
        for folder in (target, target / "figures", target / "tables"):
            folder.mkdir(parents=True, exist_ok=True)
    for name in _written_before(target) - contents.keys():
        with suppress(OSError):
            (target / name).unlink()
    for name, data in contents.items():
        write(target / name, data)
    write(target / WRITTEN, (json.dumps(sorted(contents), indent=0) + "\n").encode())


def _written_before(target: Path) -> set[str]:
    try:
        names = json.loads((target / WRITTEN).read_text(encoding="utf-8"))
        return {name for name in names if len(PurePosixPath(name).parts) <= 2 and ".." not in PurePosixPath(name).parts}
    except (OSError, ValueError, TypeError):
        return set()


def _write_docs(content: Content, docs: Path, svgs: Mapping[str, str]) -> None:
    with explained(docs / "figures"):
        (docs / "figures").mkdir(parents=True, exist_ok=True)
    notes = (docs / NOTES).read_text(encoding="utf-8") if (docs / NOTES).is_file() else ""
    write(docs / "results.md", render_docs(content, notes).encode())
    for name, drawing in docs_figures(content).items():
        write(docs / "figures" / f"{name}.svg", svgs[drawing.name].encode())


def render_page(content: Content, svgs: Mapping[str, str]) -> str:
    """Renders index.html. `svgs` are the drawings of `content` by name."""
    shown: Counter[str] = Counter()

    def inline(drawing: Drawing) -> Markup:
        name = drawing.name
        shown[name] += 1
        svg = re.sub(r"<style>.*?</style>", "", svgs[name], count=1)  # the page has its own style
        if shown[name] > 1:  # a figure that is shown twice needs other ids
            svg = re.sub(rf'(id="|#){re.escape(name)}-', rf"\g<1>{name}-{shown[name]}-", svg)
        return Markup(svg)

    page = _render("index.html.jinja", autoescape=True, content=content, svg=inline, groups=header_groups)
    return re.sub(r"\n\s*\n+", "\n", page)


def render_docs(content: Content, notes: str) -> str:
    """Renders results.md: the tables that the paper has, some figures, and the notes that people wrote."""
    reading = content.collection.reading
    damaged = [f"{run.path} is left out: {run.problem}" for run in reading.damaged]
    unfinished = [f"Unfinished: {line}" for line in content.unfinished]
    remarks = [*content.kept_apart, *damaged, *unfinished, *reading.remarks]
    paper = [f"ranks-{benchmark}" for benchmark in PAPER_RANKS]
    grids = [g for g in content.grids if g.rows and (g.name in paper or not g.name.startswith("ranks-"))]
    values: dict[str, Any] = {"content": content, "notes_file": NOTES, "figures": docs_figures(content), "grids": grids}
    page = _render("results.md.jinja", **values, remarks=remarks)
    return page.rstrip() + "\n" + (f"\n{notes.strip()}\n" if notes.strip() else "")


def docs_figures(content: Content) -> dict[str, Drawing]:
    """The figures of results.md, by the name of their file without its ending."""
    drawings = [drawing for section in content.sections.values() for drawing in section]
    found = {name: [d for d in drawings if d.name.startswith(name)] for name in DOCS_FIGURES}
    return {name: matching[0] for name, matching in found.items() if matching}


def header_groups(grid: Grid) -> list[tuple[str, int]]:
    """The headings above headings, and how many columns each spans; empty if there are none."""
    if not any(column.group for column in grid.columns):
        return []
    # Columns without a group stay apart, so that each has its own empty cell.
    keys = ((column.group, 0 if column.group else number) for number, column in enumerate(grid.columns))
    return [(group, len(list(columns))) for (group, _), columns in groupby(keys)]


def to_markdown(grid: Grid) -> str:
    """Prints the table without its title. Cells are escaped."""
    return _render("table.md.jinja", grid=grid)


def to_latex(grid: Grid) -> str:
    r"""Prints a `tabular` with the rules of booktabs, ready to \input."""
    return _render("table.tex.jinja", grid=grid)


def _render(template: str, *, autoescape: bool = False, **values: Any) -> str:
    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    options |= {"keep_trailing_newline": True, "autoescape": autoescape}
    environment = Environment(loader=PackageLoader("remnant.report"), **options)
    environment.filters |= {"text": cell_text, "escaped": escape_markdown, "latex": latex_cell, "number": number}
    environment.filters |= {"method": method_title, "benchmark": benchmark_title, "flatten": flatten}
    return environment.get_template(template).render(version=__version__, **values)
