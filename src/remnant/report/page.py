"""Writes a report: index.html, which loads nothing and escapes everything, the files beside it, and docs/results.md.

The same runs give the same bytes, so anyone can check whether a report is out of date.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from remnant import __version__
from remnant.files import explained, write

from .content import Content, make_content
from .figures import Drawing
from .grid import Cell, Number, cell_text, number, to_csv
from .names import BOUNDS, TEXTS, benchmark_title, expected_methods, in_order, method_title
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
        texts = {"csv": to_csv(grid), "tex": render("table.tex.jinja", grid=grid)}
        texts["md"] = f"# {grid.title}\n\n{render('table.md.jinja', grid=grid)}"
        contents |= {f"tables/{grid.name}.{ending}": text.encode() for ending, text in texts.items()}
    _replace(target, contents)
    if docs is not None:
        notes = (docs / NOTES).read_text(encoding="utf-8") if (docs / NOTES).is_file() else ""
        with explained(docs / "figures"):
            (docs / "figures").mkdir(parents=True, exist_ok=True)
        write(docs / "results.md", render_docs(content, notes).encode())
        for name, drawing in docs_figures(content).items():
            write(docs / "figures" / f"{name}.svg", svgs[drawing.name].encode())
    return content


def _replace(target: Path, contents: Mapping[str, bytes]) -> None:
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
    shown: Counter[str] = Counter()

    def inline(drawing: Drawing) -> Markup:
        name = drawing.name
        shown[name] += 1
        svg = re.sub(r"<style>.*?</style>", "", svgs[name], count=1)  # the page has its own style
        if shown[name] > 1:  # a figure that is shown twice needs other ids
            svg = re.sub(rf'(id="|#){re.escape(name)}-', rf"\g<1>{name}-{shown[name]}-", svg)
        return Markup(svg)

    # The matrix has all benchmarks and methods that were run or that the paper's tables have.
    expected, collection = expected_methods(), content.collection
    benchmarks = in_order("benchmarks", [*expected, *collection.benchmarks])
    methods = in_order("methods", [*chain(*expected.values()), *collection.methods])
    values = {"benchmarks": benchmarks, "methods": methods, "expected": expected, "bounds": BOUNDS}
    page = render("index.html.jinja", content=content, svg=inline, version=__version__, **values)
    return re.sub(r"\n\s*\n+", "\n", page)


def render_docs(content: Content, notes: str) -> str:
    """Renders results.md: the tables that the paper has, some figures, and the notes that people wrote."""
    paper = [f"ranks-{benchmark}" for benchmark in PAPER_RANKS]
    grids = [g for g in content.grids if g.rows and (g.name in paper or not g.name.startswith("ranks-"))]
    page = render("results.md.jinja", content=content, notes_file=NOTES, figures=docs_figures(content), grids=grids)
    return page.rstrip() + "\n" + (f"\n{notes.strip()}\n" if notes.strip() else "")


def docs_figures(content: Content) -> dict[str, Drawing]:
    """The figures of results.md, by the name of their file without its ending."""
    drawings = [drawing for section in content.sections.values() for drawing in section]
    found = {name: [d for d in drawings if d.name.startswith(name)] for name in DOCS_FIGURES}
    return {name: matching[0] for name, matching in found.items() if matching}


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
    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    options |= {"keep_trailing_newline": True, "autoescape": select_autoescape(["html.jinja"])}
    environment = Environment(loader=PackageLoader("remnant.report"), **options)
    environment.filters |= {"text": cell_text, "escaped": escape_markdown, "latex": to_latex, "number": number}
    environment.filters |= {"method": method_title, "benchmark": benchmark_title, "flatten": flatten}
    return environment.get_template(template).render(**values)
