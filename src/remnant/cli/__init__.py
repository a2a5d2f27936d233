"""The command line: parses, prints and shows progress. Commands import their rooms when called, so --help is quick.

A new command is a function with `@app.command()` in one of these files, or in a new one that is imported here.
"""

from . import clean, compare, paper, runs, show
from .app import app
from .data import data
from .lists import listing

app.add_typer(listing, name="list")
app.add_typer(data, name="data")

__all__ = ["app", "clean", "compare", "paper", "runs", "show"]
