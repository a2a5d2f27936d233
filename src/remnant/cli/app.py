"""The `remnant` command, to which the other modules of this room add their commands."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .console import friendly_errors


class FriendlyGroup(TyperGroup):
    """Runs every command with `friendly_errors`."""

    def invoke(self, ctx: Any) -> Any:
        with friendly_errors():
            return super().invoke(ctx)


app = typer.Typer(
    name="remnant", cls=FriendlyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from remnant import __version__

        typer.echo(f"remnant {__version__}")
        raise typer.Exit


@app.callback()
def remnant(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Learn one task after another without forgetting.

    Start with: remnant demo
    """
