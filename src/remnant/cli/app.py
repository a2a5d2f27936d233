"""The command itself, which the other files add to."""

import typer

app = typer.Typer(
    name="remnant",
    help="Learn one task after another without forgetting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
