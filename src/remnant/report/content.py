"""Everything a report says, collected before anything is written."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .cards import Card, make_card
from .figures import Drawing, make_sections, variant_drawings
from .grid import Grid
from .names import expected_methods, run_command, title_of
from .records import read_runs
from .tables import all_grids
from .variants import Collection, Variant, collect

MOST_DRAWN = 8  # settings of a method on a benchmark that have figures: those of a large sweep would take minutes


class Content(NamedTuple):
    """The content of the page, of the files beside it, and of docs/results.md."""

    collection: Collection
    cards: list[Card]
    details: list[list[tuple[Variant, list[Drawing]]]]  # all settings with which one method was run on one benchmark
    grids: list[Grid]
    sections: dict[str, list[Drawing]]

    @property
    def drawings(self) -> dict[str, Drawing]:
        """Every figure once, by name."""
        groups = [*self.sections.values(), *(drawings for variants in self.details for _, drawings in variants)]
        return {drawing.name: drawing for drawings in groups for drawing in drawings}

    @property
    def missing(self) -> list[str]:
        """The command for each entry of the paper's tables that has no finished run."""
        return [
            run_command(benchmark, method) or f"{title_of(method, benchmark)}: no recipe yet"
            for benchmark, methods in expected_methods().items()
            for method in methods
            if method not in self.collection.mains(benchmark)
        ]

    @property
    def kept_apart(self) -> list[str]:
        """A sentence for each method that was run with several settings on one benchmark."""
        return [
            f"{group[0].title} was run with {len(group)} different settings, which are kept apart: "
            f"{'; '.join(f'{v.label} ({v.digest})' for v in group)}."
            for group in self.collection.by_method()
            if len(group) > 1
        ]

    @property
    def unfinished(self) -> list[str]:
        """A sentence for each unfinished run."""
        runs = [run for variant in self.collection.variants for run in variant.unfinished]
        return [f"{run.path}: {run.progress}. It counts in no mean; remnant resume continues it." for run in runs]


def make_content(roots: Sequence[Path]) -> Content:
    """Reads all runs below these folders, and makes every table and figure of them."""
    collection = collect(read_runs(roots))
    cards = [make_card(collection, benchmark) for benchmark in collection.benchmarks]
    details = [
        [(v, variant_drawings(collection, v) if place < MOST_DRAWN else []) for place, v in enumerate(group)]
        for group in collection.by_method()
    ]
    return Content(collection, cards, details, all_grids(collection), make_sections(collection))
