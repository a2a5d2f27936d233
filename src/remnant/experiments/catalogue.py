"""What there is, read off the package's source: to import it would bring torch along, and a list is not worth a second."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple, TypeVar

Kind = TypeVar("Kind", bound=ast.stmt)


class Entry(NamedTuple):
    name: str
    summary: str
    datasets: tuple[str, ...] = ()


def methods() -> list[Entry]:
    """Classes with a `name`, by that name."""
    found = [
        Entry(str(ast.literal_eval(line.value)), _summary(node))
        for node in _definitions("methods", ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "name"
    ]
    return sorted(found)


def models() -> list[Entry]:
    """Networks, in the order of `MODELS`."""
    summaries = {node.name: _summary(node) for node in _definitions("models", ast.ClassDef)}
    (table,) = (line.value for line in _definitions("models", ast.AnnAssign) if ast.unparse(line.target) == "MODELS")
    assert isinstance(table, ast.Dict)
    return [
        Entry(str(ast.literal_eval(name)), summaries[ast.unparse(network)])
        for name, network in zip(table.keys, table.values, strict=True)
        if name is not None
    ]


def benchmarks() -> list[Entry]:
    """Functions under `@benchmark(name, *datasets)`."""
    found = []
    for node in _definitions("data", ast.FunctionDef):
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "benchmark":
                name, *datasets = (str(ast.literal_eval(word)) for word in call.args)
                found.append(Entry(name, _summary(node), tuple(datasets)))
    return sorted(found)


def _definitions(room: str, kind: type[Kind]) -> Iterator[Kind]:
    for file in (files("remnant") / room).iterdir():
        if file.name.endswith(".py"):
            yield from (node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, kind))


def _summary(node: ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]
