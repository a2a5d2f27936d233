"""What there is."""

from typing import Annotated

import typer

from .console import friendly_errors, out

listing = typer.Typer(help="What there is: methods, benchmarks, models, settings.", no_args_is_help=True)


@listing.command("methods")
def list_methods() -> None:
    """Methods that can be run."""
    with friendly_errors():
        from . import list_tables as lists

        lists.methods(out)


@listing.command("benchmarks")
def list_benchmarks() -> None:
    """Benchmarks, and whether their data is here."""
    with friendly_errors():
        from . import list_tables as lists

        lists.benchmarks(out)


@listing.command("models")
def list_models() -> None:
    """Networks."""
    with friendly_errors():
        from . import list_tables as lists

        lists.models(out)


@listing.command("settings")
def list_settings(
    method: Annotated[str, typer.Argument(help="A method.")],
    benchmark: Annotated[str | None, typer.Option(help="With its values; else those for one's own streams.")] = None,
) -> None:
    """Every setting that --set can change."""
    with friendly_errors():
        from . import list_tables as lists

        lists.settings(out, method, benchmark)
