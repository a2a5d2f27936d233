"""What there is, read off the package's source: to import it would bring torch along, and a list is not worth a second."""

from __future__ import annotations

import ast
import collections.abc
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

Kind = TypeVar("Kind", bound=ast.stmt)


class Entry(NamedTuple):
    name: str
    summary: str
    datasets: tuple[str, ...] = ()


class Option(NamedTuple):
    """A keyword-only argument, which is how streams and networks take their options."""

    hint: Any
    default: Any


def methods() -> list[Entry]:
    """Classes with a `name`, by that name."""
    return sorted(Entry(name, _summary(node)) for name, node in _methods().items())


def needs_task(method: str) -> bool:
    """Whether a method must be told the task at test time; not, where there is no such method."""
    return method in _methods() and bool(_assigned(_methods()[method].body, "needs_task"))


def models() -> list[Entry]:
    """Networks, in the order of `MODELS`."""
    return [Entry(name, _summary(node)) for name, node in _models().items()]


def model_options() -> dict[str, dict[str, Option]]:
    """What each network takes, in the order of `MODELS`."""
    return {
        name: _options(line, "models")
        for name, node in _models().items()
        for line in node.body
        if isinstance(line, ast.FunctionDef) and line.name == "__init__"
    }


def benchmarks() -> list[Entry]:
    """Functions under `@benchmark(name, *datasets)`."""
    return sorted(Entry(name, _summary(node), datasets) for name, datasets, node in _streams())


def stream_options() -> dict[str, dict[str, Option]]:
    """What each benchmark's stream takes."""
    return {name: _options(node, "data") for name, _, node in _streams()}


def rank_rules() -> tuple[str, ...]:
    return tuple(_assigned(_source("memory"), "RANK_RULES"))


def _methods() -> dict[str, ast.ClassDef]:
    named = ((_assigned(node.body, "name"), node) for node in _definitions("methods", ast.ClassDef))
    return {name: node for name, node in named if name is not None}


def _models() -> dict[str, ast.ClassDef]:
    classes = {node.name: node for node in _definitions("models", ast.ClassDef)}
    (table,) = (line.value for line in _definitions("models", ast.AnnAssign) if ast.unparse(line.target) == "MODELS")
    assert isinstance(table, ast.Dict)
    return {
        str(ast.literal_eval(name)): classes[ast.unparse(network)]
        for name, network in zip(table.keys, table.values, strict=True)
        if name is not None
    }


def _streams() -> Iterator[tuple[str, tuple[str, ...], ast.FunctionDef]]:
    for node in _definitions("data", ast.FunctionDef):
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "benchmark":
                name, *datasets = (str(ast.literal_eval(word)) for word in call.args)
                yield name, tuple(datasets), node


def _options(function: ast.FunctionDef, room: str) -> dict[str, Option]:
    """The keyword-only arguments, each of which must have an annotation and a default that is written out."""
    return {
        argument.arg: Option(eval(ast.unparse(argument.annotation), _vocabulary(room)), ast.literal_eval(default))
        for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if argument.annotation is not None and default is not None
    }


@cache
def _vocabulary(room: str) -> dict[str, Any]:
    """What annotations may be made of: `typing`, `collections.abc`, and the room's own `Name = Literal[…]`."""
    names = {**vars(typing), **vars(collections.abc)}
    literals = [line for line in _definitions(room, ast.Assign) if ast.unparse(line.value).startswith("Literal[")]
    return names | {ast.unparse(line.targets[0]): eval(ast.unparse(line.value), names) for line in literals}


def _assigned(body: Iterable[ast.stmt], name: str) -> Any:
    """What `name = …` (or `name: type = …`) says there; None where there is no such line."""
    for line in body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
            if ast.unparse(target) == name:
                return ast.literal_eval(line.value)
    return None


def _definitions(room: str, kind: type[Kind]) -> Iterator[Kind]:
    return (node for node in _source(room) if isinstance(node, kind))


@cache
def _source(room: str) -> list[ast.stmt]:
    """The outermost lines of all files of a room."""
    texts = [f.read_text(encoding="utf-8") for f in (files("remnant") / room).iterdir() if f.name.endswith(".py")]
    return [node for text in texts for node in ast.parse(text).body]


def _summary(node: ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]
