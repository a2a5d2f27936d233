"""Puts a report on disk. The same runs give the same bytes, so that anyone can see whether one is out of date."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from remnant.experiments.runs.files import explained, write

from .content import Content, make_content
from .docs import FIGURES, PAGE, docs_figures, docs_page, read_notes
from .formats import latex, markdown, to_csv
from .page import render_page

INDEX, WRITTEN = "index.html", ".written-by-remnant-report.json"


@dataclass(frozen=True)
class Written:
    """What a person wants to know when it is done."""

    page: Path
    runs: int
    unfinished: int
    damaged: tuple[str, ...]
    figures: int
    tables: int


def write_report(roots: Sequence[Path], target: Path, docs: Path | None = None) -> Written:
    content = make_content(roots)
    drawn = {name: drawing.render() for name, drawing in content.drawings.items()}
    svgs = {name: svg for name, (svg, _) in drawn.items()}
    files: dict[str, bytes] = {}
    for name, (svg, png) in drawn.items():
        files[f"figures/{name}.svg"], files[f"figures/{name}.png"] = svg.encode(), png
    for grid in content.grids:
        files[f"tables/{grid.name}.md"] = f"# {grid.title}\n\n{markdown(grid)}".encode()
        files[f"tables/{grid.name}.csv"] = to_csv(grid).encode()
        files[f"tables/{grid.name}.tex"] = latex(grid).encode()
    files[INDEX] = render_page(content, svgs).encode()
    _replace(target, files)
    if docs is not None:
        write_docs(content, docs, svgs)
    reading = content.collection.reading
    return Written(
        target / INDEX,
        sum(1 for run in reading.runs if run.measured),
        sum(1 for run in reading.runs if not run.measured),
        tuple(f"{run.place}: {run.why}" for run in reading.damaged),
        len(drawn),
        len(content.grids),
    )


def write_docs(content: Content, docs: Path, svgs: Mapping[str, str]) -> None:
    with explained(docs / FIGURES):
        (docs / FIGURES).mkdir(parents=True, exist_ok=True)
    write(docs / PAGE, docs_page(content, read_notes(docs)).encode())
    for name, drawing in docs_figures(content).items():
        write(docs / FIGURES / f"{name}.svg", svgs[drawing.name].encode())


def _replace(target: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files, and removes those that an earlier report left and this one does not have. Others' are not touched."""
    with explained(target / INDEX):
        for folder in (target, target / "figures", target / "tables"):
            folder.mkdir(parents=True, exist_ok=True)
    for name in _earlier(target) - files.keys():
        with suppress(OSError):
            (target / name).unlink()
    for name, data in files.items():
        write(target / name, data)
    write(target / WRITTEN, (json.dumps(sorted(files), indent=0) + "\n").encode())


def _earlier(target: Path) -> set[str]:
    try:
        names = json.loads((target / WRITTEN).read_text(encoding="utf-8"))
        return {name for name in names if len(PurePosixPath(name).parts) <= 2 and ".." not in PurePosixPath(name).parts}
    except (OSError, ValueError, TypeError):
        return set()
