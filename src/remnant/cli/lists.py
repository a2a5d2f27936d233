"""`remnant list`: tables of methods, benchmarks, models and settings."""

import inspect
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from remnant.errors import UserError
from remnant.registry import Registry

from .app import print_rows, print_text

listing = typer.Typer(help="List methods, benchmarks, models and settings.", invoke_without_command=True)


@listing.callback()
def list_all(context: typer.Context) -> None:
    """List the methods, networks and benchmarks.

    Example: remnant list
    """
    if context.invoked_subcommand is None:
        list_methods()
        list_models()
        list_benchmarks()


@listing.command("methods")
def list_methods() -> None:
    """List the methods that can be run.

    Example: remnant list methods
    """
    from remnant.methods import METHODS

    _print([{"method": name, "what it is": _title(METHODS, name)} for name in sorted(METHODS)])


@listing.command("models")
def list_models() -> None:
    """List the networks.

    Example: remnant list models
    """
    from remnant.models import MODELS

    _print([{"model": name, "what it is": _summary(MODELS, name)} for name in sorted(MODELS)])


@listing.command("benchmarks")
def list_benchmarks() -> None:
    """List the benchmarks. Shows whether their data is on this machine.

    Example: remnant list benchmarks
    """
    from remnant.data import BENCHMARKS, BUILT_IN, state_of

    rows = []
    for name in sorted(BENCHMARKS):
        states = {data: state_of(data) for data in (BUILT_IN[name].datasets if name in BUILT_IN else ())}
        wanted = (
            data if state == "missing" else f"{data} ({state})" for data, state in states.items() if state != "ready"
        )
        missing = ", ".join(wanted)
        data = f"needs {missing}" if missing else "ready"
        rows.append({"benchmark": name, "data": data, "what it is": _summary(BENCHMARKS, name)})
    _print(rows)


@listing.command("settings")
def list_settings(
    method: Annotated[str, typer.Argument(help="A method (remnant list methods), or path/to/file.py:Name.")],
    benchmark: Annotated[
        str | None,
        typer.Option(help="Show the values for this benchmark. Default: the values for your own streams."),
    ] = None,
) -> None:
    """List every setting that --set can change, and what the method and its training do with them.

    Example: remnant list settings gpm --benchmark split-cifar100
    """
    from remnant.experiments.settings import describe
    from remnant.methods import METHODS
    from remnant.training import Schedule

    rows = describe(benchmark, method)
    _print([{"--set": row.key, "value": row.value, "allowed": row.allowed, "from": row.source} for row in rows])
    for name, owner in ((method, METHODS[method]), ("training", Schedule)):
        print_text(f"\n{name}: {inspect.cleandoc(owner.__doc__ or 'It has no description.')}")


def _title(methods: Registry[Any], name: str) -> str:
    """Returns the first line of the module of a built-in method, which names its paper, if it has no other method."""
    modules = [method.__module__ for method in methods.data.values()]
    if name not in methods.data or modules.count(methods[name].__module__) > 1:
        return _summary(methods, name)
    return (sys.modules[methods[name].__module__].__doc__ or "").partition("\n")[0]


def _summary(registry: Mapping[str, Any], name: str) -> str:
    """Returns the first line of the docstring, or the error of an entry point that cannot be loaded."""
    try:
        return (registry[name].__doc__ or "").strip().partition("\n")[0]
    except UserError as error:
        return str(error)


def _print(rows: list[dict[str, str]]) -> None:
    print_rows("", rows, tuple(rows[0]), lambda cell: "green" if cell == "ready" else "")
