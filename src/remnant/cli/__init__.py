"""The command line: parses and prints, decides nothing. Rooms are imported inside the commands, so that --help is quick."""

from . import runs
from .app import app
from .data import data
from .lists import listing

app.add_typer(listing, name="list")
app.add_typer(data, name="data")

__all__ = ["app", "runs"]
