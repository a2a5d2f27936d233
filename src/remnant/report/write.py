"""Writes a report. The same runs give the same bytes, so anyone can check whether a report is out of date."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from remnant.experiments.runs import explained, write

from .content import Content, make_content
from .grid import markdown, to_csv, to_latex
from .page import NOTES, docs_figures, render_docs, render_page

INDEX, WRITTEN = "index.html", ".written-by-remnant-report.json"


@dataclass(frozen=True)
class Written:
    """What a report contains, for the message at its end."""

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
        files[f"tables/{grid.name}.tex"] = to_latex(grid).encode()
    files[INDEX] = render_page(content, svgs).encode()
    _replace(target, files)
    if docs is not None:
        _write_docs(content, docs, svgs)
    reading = content.collection.reading
    finished = sum(1 for run in reading.runs if run.result)
    damaged = tuple(f"{run.path}: {run.problem}" for run in reading.damaged)
    return Written(target / INDEX, finished, len(reading.runs) - finished, damaged, len(drawn), len(content.grids))


def _write_docs(content: Content, docs: Path, svgs: Mapping[str, str]) -> None:
    with explained(docs / "figures"):
        (docs / "figures").mkdir(parents=True, exist_ok=True)
    notes = (docs / NOTES).read_text(encoding="utf-8") if (docs / NOTES).is_file() else ""
    write(docs / "results.md", render_docs(content, notes).encode())
    for name, drawing in docs_figures(content).items():
        write(docs / "figures" / f"{name}.svg", svgs[drawing.name].encode())


def _replace(target: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files, and removes those that only the previous report had. Other files are not touched."""
    with explained(target / INDEX):
        for folder in (target, target / "figures", target / "tables"):
            folder.mkdir(parents=True, exist_ok=True)
    for name in _written_before(target) - files.keys():
        with suppress(OSError):
            (target / name).unlink()
    for name, data in files.items():
        write(target / name, data)
    write(target / WRITTEN, (json.dumps(sorted(files), indent=0) + "\n").encode())


def _written_before(target: Path) -> set[str]:
    try:
        names = json.loads((target / WRITTEN).read_text(encoding="utf-8"))
        return {name for name in names if len(PurePosixPath(name).parts) <= 2 and ".." not in PurePosixPath(name).parts}
    except (OSError, ValueError, TypeError):
        return set()
