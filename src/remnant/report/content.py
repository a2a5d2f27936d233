"""All that a report says, before anything is written: read once, the same for the page, the files and the docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .details import Detail, make_details
from .expected import Missing, missing
from .figures import Drawing, Section, sections
from .grid import Grid
from .matrix import Matrix, make_matrix
from .names import benchmark_title, method_title
from .records import read_runs
from .summary import Card, summarise
from .tables import all_grids
from .variants import Collection, collect


@dataclass(frozen=True)
class Content:
    collection: Collection
    cards: tuple[Card, ...]
    matrix: Matrix
    details: tuple[Detail, ...]
    grids: tuple[Grid, ...]
    sections: tuple[Section, ...]
    missing: tuple[Missing, ...]
    kept_apart: tuple[str, ...]
    unfinished: tuple[str, ...]

    @property
    def drawings(self) -> dict[str, Drawing]:
        """Every figure once, by name."""
        shown = [drawing for section in self.sections for drawing in section.drawings]
        shown += [drawing for detail in self.details for variant in detail.variants for drawing in variant.drawings]
        return {drawing.name: drawing for drawing in shown}


def make_content(roots: Sequence[Path]) -> Content:
    collection = collect(read_runs(roots))
    return Content(
        collection,
        tuple(summarise(collection)),
        make_matrix(collection),
        tuple(make_details(collection)),
        tuple(all_grids(collection)),
        tuple(sections(collection)),
        tuple(missing(collection)),
        tuple(_kept_apart(collection)),
        tuple(_unfinished(collection)),
    )


def _kept_apart(collection: Collection) -> list[str]:
    return [
        f"{method_title(found[0].method)} on {benchmark_title(found[0].benchmark)} was run with {len(found)} different "
        f"settings, which are kept apart: {'; '.join(f'{v.label} ({v.digest})' for v in found)}."
        for found in collection.several_settings()
    ]


def _unfinished(collection: Collection) -> list[str]:
    found = []
    for variant in collection.variants:
        for run in variant.unfinished:
            tasks = f"{run.learned} of {run.matrix.tasks} tasks" if run.matrix else "no task"
            found.append(f"{run.place}: {tasks} done. It counts in no mean; remnant resume goes on with it.")
    return found
