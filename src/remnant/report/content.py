"""Everything a report says, collected before anything is written."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from remnant.experiments.paper import TABLES

from .cards import make_card
from .comparison import Comparison, comparisons
from .figures import Drawing, make_sections
from .grid import Grid
from .names import has_recipe, in_order, paper_table, title_of
from .one_run import OneRun
from .records import read_runs
from .tables import all_grids
from .variants import Collection, collect


class Content(NamedTuple):
    """The content of the page, of the files beside it, and of docs/results.md."""

    collection: Collection
    cards: dict[str, list[str]]  # sentences by benchmark
    comparisons: list[Comparison]
    runs: list[OneRun]  # in the order of the collection's variants
    grids: list[Grid]
    sections: dict[str, list[Drawing]]

    @property
    def drawings(self) -> dict[str, Drawing]:
        """Every figure once, by name."""
        return {drawing.name: drawing for drawings in self.sections.values() for drawing in drawings}

    @property
    def missing(self) -> list[str]:
        """The command for each entry of the paper's tables that has no finished run."""
        rows = [row for name in TABLES for row in paper_table(name).rows]
        return [
            f"remnant run {benchmark} {method} --seeds 5"
            if has_recipe(benchmark, method)
            else f"{title_of(method, benchmark)}: no recipe yet"
            for benchmark in in_order("benchmarks", (row.benchmark for row in rows))
            for method in in_order("methods", (row.method for row in rows if row.benchmark == benchmark))
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
    cards = {benchmark: make_card(collection, benchmark) for benchmark in collection.benchmarks}
    runs = [OneRun(record, variant) for variant in collection.variants for record in variant.all_runs]
    compared = list(comparisons(collection.variants))
    return Content(collection, cards, compared, runs, all_grids(collection), make_sections(collection))
