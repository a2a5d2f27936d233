"""The shape of the code: which room may import which, how rooms are entered, and how long files and functions get.

Each test lists every violation at once.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import quantiles

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "remnant"
FILES = sorted(SOURCE.rglob("*.py"))
LEAVES = {"data", "models", "evaluation"}
# cli → report, experiments → accelerated → training → methods → memory: each room may import those below it.
ALLOWED: dict[str, set[str]] = {
    "memory": set(),
    "data": set(),
    "models": set(),
    "evaluation": set(),
    "integrations": {"memory", "data"},
    "methods": {"memory", *LEAVES},
    "training": {"methods", "memory", *LEAVES},
    "accelerated": {"training", "methods", "memory", *LEAVES},
    "experiments": {"accelerated", "training", "methods", "memory", *LEAVES},
    "report": {"experiments", "accelerated", "training", "methods", "memory", *LEAVES},
    "cli": {"report", "experiments", "accelerated", "training", "methods", "memory", *LEAVES},
}
EXPERIMENTS = {"settings", "runs", "execute", "paper"}  # rooms within a room, entered through their own `__init__`
ENTRANCES = {"__init__.py", "__main__.py"}  # of the package itself: they hand over to `memory` and `cli`
LONGEST_FILE, LONGEST_FUNCTION = 300, 25


@dataclass(frozen=True)
class Import:
    """One `import` or `from … import …`, with its target as an absolute module name."""

    file: Path
    line: int
    target: str  # remnant.memory.subspaces.subspace
    names: tuple[str, ...]  # the imported names; empty for `import x`
    relative: bool

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(SOURCE)}:{self.line}"

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.target.split("."))


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def room_of(file: Path) -> str:
    """The room of a file, or "" for the package's root modules."""
    parts = file.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def target_room(target: str) -> str:
    """The room of a module name, or "" for a root module and for other packages."""
    parts = target.split(".")
    return parts[1] if parts[0] == "remnant" and len(parts) > 1 and (SOURCE / parts[1]).is_dir() else ""


def imports_of(file: Path) -> Iterator[Import]:
    package = ("remnant", *file.relative_to(SOURCE).parent.parts)
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, (), relative=False)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = ".".join([*base, *([node.module] if node.module else [])])
            names = [alias.name for alias in node.names]
            modules = [name for name in names if is_module(target, name)]
            for module in modules:  # `from remnant import memory` is `import remnant.memory`
                yield Import(file, node.lineno, f"{target}.{module}", (), relative=node.level > 0)
            if rest := tuple(name for name in names if name not in modules):
                yield Import(file, node.lineno, target, rest, relative=node.level > 0)


def is_module(package: str, name: str) -> bool:
    """Whether `from package import name` imports a module that the package does not export on purpose."""
    parts = package.split(".")
    folder = SOURCE.joinpath(*parts[1:])
    exists = (folder / name).is_dir() or (folder / f"{name}.py").is_file()
    return parts[0] == "remnant" and exists and name not in exported(folder)


def all_imports() -> Iterator[Import]:
    for file in FILES:
        yield from imports_of(file)


def own_imports() -> Iterator[tuple[str, str, Import]]:
    """Every import of this package by one of its rooms: (room, target room, import)."""
    for found in all_imports():
        if room_of(found.file) and found.parts[0] == "remnant":
            yield room_of(found.file), target_room(found.target), found


@cache
def exported(package: Path) -> set[str]:
    """The names in the `__all__` of a package's `__init__`."""
    file = package / "__init__.py"
    for node in tree_of(file).body if file.is_file() else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def report(violations: list[str]) -> None:
    assert not violations, f"{len(violations)} violations:\n" + "\n".join(sorted(violations))


def test_every_room_is_known() -> None:
    rooms = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").is_file()}
    assert rooms <= set(ALLOWED)


def test_imports_point_one_way() -> None:
    report(
        [
            f"{found.place}: {room} may not import {target}"
            for room, target, found in own_imports()
            if target and target not in {room, *ALLOWED[room]}
        ]
    )


def entered_by_the_door(found: Import) -> bool:
    """Whether an import from outside a room goes through the room's `__init__`, by names in its `__all__`."""
    parts = found.parts
    subroom = parts[1] == "experiments" and len(parts) == 3 and parts[2] in EXPERIMENTS
    return (len(parts) == 2 or subroom) and set(found.names) <= exported(SOURCE.joinpath(*parts[1:]))


def test_rooms_are_entered_through_their_init() -> None:
    report(
        [
            f"{found.place}: from {found.target} import {', '.join(found.names)}"
            for room, target, found in own_imports()
            if target and target != room and not entered_by_the_door(found)
        ]
    )


def subroom_of(parts: tuple[str, ...]) -> str:
    return parts[1] if parts[0] == "experiments" and len(parts) > 2 and parts[1] in EXPERIMENTS else ""


def test_the_rooms_of_experiments_are_entered_through_their_init() -> None:
    violations = []
    for room, target, found in own_imports():
        if room != "experiments" or target != "experiments" or len(found.parts) < 3:
            continue
        goal = found.parts[2] if found.parts[2] in EXPERIMENTS else ""
        own = subroom_of(found.file.relative_to(SOURCE).parts)
        if goal and goal != own and not entered_by_the_door(found):
            violations.append(f"{found.place}: from {found.target} import {', '.join(found.names)}")
    report(violations)


def test_imports_are_relative_within_a_room_and_absolute_between_rooms() -> None:
    violations = []
    for room, target, found in own_imports():
        within = room == target
        other_subroom = within and room == "experiments" and found.parts[2:3] and found.parts[2] in EXPERIMENTS
        if within and not found.relative and not other_subroom:
            violations.append(f"{found.place}: {found.target} should be a relative import")
        if not within and found.relative:
            violations.append(f"{found.place}: {found.target} should be an absolute import")
    report(violations)


def test_rooms_take_only_the_version_from_the_package_itself() -> None:
    report(
        [
            f"{found.place}: from remnant import {', '.join(found.names)}"
            for room, _, found in own_imports()
            if found.target == "remnant" and not set(found.names) <= {"__version__"}
        ]
    )


def test_memory_needs_torch_numpy_and_safetensors_only() -> None:
    allowed = {"torch", "numpy", "safetensors", "remnant", *sys.stdlib_module_names}
    report(
        [
            f"{found.place}: {found.target}"
            for found in all_imports()
            if room_of(found.file) == "memory" and found.parts[0] not in allowed
        ]
    )


def test_root_modules_need_the_standard_library_only() -> None:
    violations = []
    for found in all_imports():
        if room_of(found.file) or found.file.name in ENTRANCES:
            continue
        if target_room(found.target) or found.parts[0] not in {"remnant", *sys.stdlib_module_names}:
            violations.append(f"{found.place}: {found.target}")
    report(violations)


def test_files_are_short() -> None:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    report([f"{file.relative_to(SOURCE)}: {n} lines" for file, n in lengths.items() if n > LONGEST_FILE])


def test_functions_are_short() -> None:
    found = [
        (node.end_lineno - node.lineno + 1, f"{file.relative_to(SOURCE)}:{node.lineno} {node.name}")
        for file in FILES
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    p95 = quantiles([length for length, _ in found], n=20)[-1]
    longest = "\n".join(f"{length} {name}" for length, name in sorted(found, reverse=True)[:40])
    assert p95 <= LONGEST_FUNCTION, f"95 % of functions have up to {p95:.0f} lines. The longest:\n{longest}"


def undocumented(module_name: str, names: set[str]) -> Iterator[str]:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("remnant"):
            raise
        return  # an optional dependency, such as triton
    for name in sorted(names):
        thing = getattr(module, name)
        if (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)) and not thing.__doc__:
            yield f"{module_name}.{name}"


def test_public_names_have_docstrings() -> None:
    violations = []
    for file in FILES:
        if file.name == "__init__.py" and (names := exported(file.parent)):
            violations += undocumented(".".join(["remnant", *file.parent.relative_to(SOURCE).parts]), names)
    report(violations)


def test_what_library_users_call_has_docstrings() -> None:
    import remnant

    violations = []
    for name in remnant.__all__:
        thing = getattr(remnant, name)
        members = vars(thing) if inspect.isclass(thing) else {}
        for member, value in members.items():
            value = getattr(value, "__func__", value)
            if not member.startswith("_") and (callable(value) or isinstance(value, property)) and not value.__doc__:
                violations.append(f"{name}.{member}")
    report(violations)


def test_a_memory_has_few_public_members() -> None:
    from remnant import GPM

    public = [name for name in dir(GPM) if not name.startswith("_")]
    assert len(public) <= 17, public


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("from remnant.memory import GPM", True),
        ("from remnant.memory import no_such_export", False),
        ("from remnant.memory.subspaces.subspace import Subspace", False),
        ("from remnant.experiments.runs.folder import RunFolder", False),
    ],
)
def test_the_door_is_told_from_a_window(line: str, right: bool) -> None:
    node = ast.parse(line).body[0]
    assert isinstance(node, ast.ImportFrom)
    names = tuple(alias.name for alias in node.names)
    found = Import(SOURCE / "cli" / "app.py", 1, str(node.module), names, relative=False)
    assert entered_by_the_door(found) is right
