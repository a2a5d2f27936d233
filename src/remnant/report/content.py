"""Everything a report says, collected before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from .figures import Drawing, Section, make_sections, variant_drawings
from .grid import NO_VALUE, NOT_FINISHED, Cell, Column, Grid, number
from .names import expected_methods, run_command, title_of
from .overview import Card, Matrix, make_card, make_matrix
from .records import RunRecord, read_runs
from .tables import all_grids
from .variants import Collection, Variant, collect, flatten

PARTS = ("train", "evaluate", "consolidate")


class VariantDetails(NamedTuple):
    """One set of settings, as the page shows it."""

    variant: Variant
    drawings: list[Drawing]

    @property
    def settings(self) -> list[tuple[str, str, bool]]:
        """Each setting's key, its value, and whether it differs from the recipe."""
        changed = {change.partition("=")[0] for change in self.variant.changes or ()}
        return [(key, value, key in changed) for key, value in flatten(self.variant.settings)]

    @property
    def command(self) -> str:
        """The command that runs these settings again; empty if no recipe leads to them."""
        changes = self.variant.changes
        if changes is None or any(change.startswith("no ") for change in changes):
            return ""
        words = ["remnant run", quote(self.variant.benchmark), quote(self.variant.method)]
        for change in changes:
            words.append("--protocol sane" if change == "sane protocol" else f"--set {quote(change)}")
        seeds = [str(run.seed) for run in self.variant.runs] or ["5"]
        comma = "," if len(self.variant.runs) == 1 else ""  # without it, one number is the number of seeds
        return " ".join([*words, f"--seeds {','.join(seeds)}{comma}"])

    @property
    def seeds(self) -> Grid:
        """A row for each seed, finished or not."""
        headings = ("seed", "ACC %", "BWT", "learning accuracy %", *(f"{part} s" for part in PARTS), "memory kB")
        columns = (*map(Column, headings), Column("state", text=True))
        return Grid("seeds", "Seed by seed", columns, tuple(map(_seed_row, self.variant.all_runs)))

    @property
    def accuracies(self) -> Grid | None:
        """R as numbers, for readers who cannot see the heat map."""
        matrix = self.variant.mean_matrix()
        if matrix is None:
            return None
        columns = (Column("%", text=True), *(Column(f"task {i + 1}") for i in range(len(matrix))))
        rows = [(f"after {t}", *(number(value, 1, otherwise="") for value in row)) for t, row in enumerate(matrix, 1)]
        title = f"Accuracies, mean over {len(self.variant.runs)} seed(s)"
        return Grid("accuracies", title, columns, tuple(row for row in rows if any(row[1:])))

    @property
    def environments(self) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        """The seeds that ran in each environment, and its entries."""
        groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for run in self.variant.all_runs:
            entries = ((key, NO_VALUE if value is None else str(value)) for key, value in run.environment.items())
            groups.setdefault(tuple(entries), []).append(run.seed)
        return [
            (("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, sorted(seeds))), entries)
            for entries, seeds in groups.items()
        ]


def _seed_row(run: RunRecord) -> tuple[Cell, ...]:
    m = run.result
    if m is None:
        return (str(run.seed), *[NOT_FINISHED] * 3, *[NO_VALUE] * 4, f"unfinished: {run.progress}")
    learning = None if m.learning_accuracy is None else 100 * m.learning_accuracy
    seconds = (number(m.seconds.get(part), 1) for part in PARTS)
    memory = number(None if m.memory_bytes is None else m.memory_bytes / 1000, 0)
    return str(run.seed), number(100 * m.acc), number(m.bwt, 3), number(learning), *seconds, memory, "finished"


@dataclass(frozen=True)
class Content:
    """The content of the page, of the files beside it, and of docs/results.md."""

    collection: Collection
    cards: list[Card]
    matrix: Matrix
    details: list[list[VariantDetails]]  # all settings with which one method was run on one benchmark
    grids: list[Grid]
    sections: list[Section]

    @property
    def drawings(self) -> dict[str, Drawing]:
        """Every figure once, by name."""
        shown = [drawing for section in self.sections for drawing in section.drawings]
        shown += [drawing for details in self.details for variant in details for drawing in variant.drawings]
        return {drawing.name: drawing for drawing in shown}

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
    details = [[VariantDetails(v, variant_drawings(collection, v)) for v in group] for group in collection.by_method()]
    return Content(
        collection, cards, make_matrix(collection), details, all_grids(collection), make_sections(collection)
    )
