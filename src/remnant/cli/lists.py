"""`remnant list`: tables of methods, benchmarks, models and settings."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from .console import friendly_errors, out

listing = typer.Typer(help="List methods, benchmarks, models and settings.", no_args_is_help=True)


@listing.command("methods")
def list_methods() -> None:
    """List the methods that can be run."""
    with friendly_errors():
        from remnant.methods import METHODS

        _print_table(("method", "what it does"), _summaries(METHODS))


@listing.command("models")
def list_models() -> None:
    """List the networks."""
    with friendly_errors():
        from remnant.models import MODELS

        _print_table(("model", "what it is"), _summaries(MODELS))


@listing.command("benchmarks")
def list_benchmarks() -> None:
    """List the benchmarks, and whether their data is on this machine."""
    with friendly_errors():
        from remnant.data import BENCHMARKS, datasets_of, is_ready

        rows = []
        for name, summary in _summaries(BENCHMARKS):
            missing = [dataset for dataset in datasets_of(name) if not is_ready(dataset)]
            state = f"[dim]needs {', '.join(missing)}[/dim]" if missing else "[green]ready[/green]"
            rows.append((name, state, summary))
        _print_table(("benchmark", "data", "what it is"), rows)


@listing.command("settings")
def list_settings(
    method: Annotated[str, typer.Argument(help="A method (remnant list methods), or path/to/file.py:Name.")],
    benchmark: Annotated[
        str | None, typer.Option(help="Show its values; without it, those for your own streams.")
    ] = None,
) -> None:
    """List every setting that --set can change."""
    with friendly_errors():
        from remnant.experiments.settings import describe

        rows = [
            (s.key, "none" if s.value is None else str(s.value), s.allowed, s.source)
            for s in describe(benchmark, method)
        ]
        _print_table(("--set", "value", "allowed", "from"), rows)


def _summaries(registry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each name with the first line of its docstring. A plug-in that cannot be loaded shows its error instead."""
    from remnant.errors import UserError

    rows = []
    for name in sorted(registry):
        try:
            summary = (registry[name].__doc__ or "").strip().partition("\n")[0]
        except UserError as error:
            summary = str(error)
        rows.append((name, summary))
    return rows


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:  # the first column is what people type: it is never cut short
        table.add_column(heading, no_wrap=heading == headings[0])
    for row in rows:
        table.add_row(*row)
    out.print(table)
