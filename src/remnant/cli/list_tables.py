"""`remnant list`: what there is, as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from remnant.data.sets.store import is_ready
from remnant.experiments.settings import catalogue
from remnant.experiments.settings.recipe import recipe_names


def methods(console: Console) -> None:
    _print(console, ("method", "what it does"), [(entry.name, entry.summary) for entry in catalogue.methods()])


def benchmarks(console: Console) -> None:
    rows = []
    for entry in catalogue.benchmarks():
        if entry.name in recipe_names():
            missing = [dataset for dataset in entry.datasets if not is_ready(dataset)]
            state = "[green]ready[/green]" if not missing else f"[dim]needs {', '.join(missing)}[/dim]"
            rows.append((entry.name, state, entry.summary))
    _print(console, ("benchmark", "data", "what it is"), rows)


def models(console: Console) -> None:
    _print(console, ("model", "what it is"), [(entry.name, entry.summary) for entry in catalogue.models()])


def settings(console: Console, method: str, benchmark: str | None) -> None:
    from remnant.experiments.settings.resolve import describe

    rows = [(s.key, str(s.value), s.allowed, s.source) for s in describe(benchmark, method)]
    _print(console, ("--set", "value", "allowed", "from"), rows)


def _print(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:  # the first column is what one types: it is never cut short
        drawn.add_column(heading, no_wrap=heading == headings[0])
    for row in rows:
        drawn.add_row(*row)
    console.print(drawn)
