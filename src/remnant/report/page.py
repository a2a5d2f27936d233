"""Writes a report: index.html, which loads nothing and escapes all text, the files next to it, and docs/results.md.

The same runs give the same bytes, so anyone can check whether a report is out of date.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from remnant import __version__
from remnant.files import explained, to_json, write

from .comparison import MEASURES
from .comparison_files import comparison_grid
from .content import Content, make_content
from .figures import Drawing, look_number
from .grid import Cell, Number, to_csv
from .names import TEXTS, benchmark_title, method_title
from .page_data import page_data
from .tables import FRONTIER, PAPER_RANKS

# The page may run its own style and script, and load nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
Rendered = dict[str, dict[str, bytes]]  # the files of figures by their digests

INDEX, WRITTEN = "index.html", ".written-by-remnant-report.json"
# The figures of each page in docs/, by the beginnings of their drawings' names. These are also the names of their files, which
# never change, so that README.md can show them.
DOCS_FIGURES = {
    "results": ("first-task-pmnist", "first-task-split-cifar100", "trade-off-split-cifar100", "ranks-split-cifar100"),
    "frontier": ("trade-off-successors-pmnist", "trade-off-successors-split-cifar100"),
}


def write_report(roots: Sequence[Path], target: Path, docs: Path | None = None) -> Content:
    content = make_content(roots)
    contents = report_files(content, {})
    replace_report(target, contents)
    if docs is not None:
        with explained(docs / "figures"):
            (docs / "figures").mkdir(parents=True, exist_ok=True)
        for page in DOCS_FIGURES:
            write(docs / f"{page}.md", render_docs(page, content, docs).encode())
            for name, drawing in docs_figures(page, content).items():
                write(docs / "figures" / f"{name}.svg", contents[f"figures/{drawing.name}.svg"])
    return content


def report_files(content: Content, rendered: Rendered) -> dict[str, bytes]:
    """Returns the files of a report by path. Does not draw figures in `rendered` again, and updates it to this report's."""
    drawn = {drawing.digest: drawing for drawing in content.drawings.values()}
    for digest in rendered.keys() - drawn:
        del rendered[digest]
    rendered |= {digest: drawing.render() for digest, drawing in drawn.items() if digest not in rendered}
    svgs = {drawing.name: rendered[digest]["svg"].decode() for digest, drawing in drawn.items()}
    contents: dict[str, bytes] = {INDEX: render_page(content, svgs).encode()}
    for digest, drawing in drawn.items():
        contents |= {f"figures/{drawing.name}.{ending}": data for ending, data in rendered[digest].items()}
    for grid in content.grids:
        texts = {"csv": to_csv(grid), "tex": render("table.tex.jinja", grid=grid)}
        texts["md"] = f"# {grid.title}\n\n{render('table.md.jinja', grid=grid)}"
        contents |= {f"tables/{grid.name}.{ending}": text.encode() for ending, text in texts.items()}
    return contents


def replace_report(target: Path, contents: Mapping[str, bytes]) -> None:
    """Writes the files, and removes those that only the previous report had. Other files are not touched."""
    folders = [target / "figures", target / "tables"]
    with explained(target / INDEX):
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    with suppress(OSError, ValueError, TypeError):  # there is no previous report, or no list of its files
        previous = set(json.loads((target / WRITTEN).read_text(encoding="utf-8")))
        present = {file.relative_to(target).as_posix() for folder in folders for file in folder.iterdir()}
        for name in (previous & present) - contents.keys():
            (target / name).unlink()
    for name, data in contents.items():
        write(target / name, data)
    write(target / WRITTEN, (json.dumps(sorted(contents), indent=0) + "\n").encode())


def render_page(content: Content, svgs: Mapping[str, str]) -> str:
    """Renders index.html. `svgs` are the drawings of `content` by name."""
    page = render(
        "index.html.jinja",
        content=content,
        by_variant={name: list(runs) for name, runs in groupby(content.runs, lambda run: run.variant.id)},
        measures=MEASURES,
        grid_of=comparison_grid,
        # The page has its own style.
        svgs={name: Markup(re.sub(r"<style>.*?</style>", "", svg, count=1)) for name, svg in svgs.items()},
        data=Markup(to_json(page_data(content.runs), separators=(",", ":")).decode().replace("<", "\\u003c")),
        policy=Markup(POLICY),
        version=__version__,
    )
    return re.sub(r"\n\s*\n+", "\n", page)


def render_docs(page: str, content: Content, docs: Path) -> str:
    """Renders a page of docs/: its tables, its figures, and the notes that people wrote in PAGE-notes.md beside it."""
    paper = [f"ranks-{benchmark}" for benchmark in PAPER_RANKS]
    grids = [g for g in content.grids if g.rows and (g.name in paper or not g.name.startswith("ranks-"))]
    grids = [grid for grid in grids if (grid.name in FRONTIER) == (page == "frontier")]
    file = docs / f"{page}-notes.md"
    notes = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    figures = docs_figures(page, content)
    text = render(f"{page}.md.jinja", content=content, notes_file=file.name, notes=notes, figures=figures, grids=grids)
    return text.rstrip() + "\n"


def docs_figures(page: str, content: Content) -> dict[str, Drawing]:
    """The figures of a page of docs/, by the name of their file without its ending."""
    drawings = content.drawings.values()
    found = {name: next((d for d in drawings if d.name.startswith(name)), None) for name in DOCS_FIGURES[page]}
    return {name: drawing for name, drawing in found.items() if drawing}


def escape_markdown(text: str) -> str:
    """Removes line breaks, and escapes Markdown, HTML and column separators."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", escape(" ".join(text.split()), quote=False))


def to_latex(cell: Cell) -> str:
    """The cell as LaTeX. Text is escaped."""
    if isinstance(cell, Number):
        return "$" + r" \pm ".join(filter(None, cell.plain)) + "$"
    return " ".join(cell.split()).translate(str.maketrans(TEXTS["latex"]))


def render(template: str, **values: Any) -> str:
    """Renders a template. Text is escaped for HTML in index.html, and where a filter says so."""
    environment = Environment(
        loader=PackageLoader("remnant.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=select_autoescape(["html.jinja"]),
    )
    environment.filters |= {"escaped": escape_markdown, "latex": to_latex}
    environment.filters |= {"method": method_title, "benchmark": benchmark_title, "look": look_number, "address": quote}
    return environment.get_template(template).render(**values)
