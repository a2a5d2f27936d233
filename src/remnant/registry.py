"""Methods, networks and streams by name: built in, from an installed package, or from a file of the user's own."""

import hashlib
import sys
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .errors import UserError, did_you_mean

T = TypeVar("T")
LISTS = {"method": "methods", "network": "models", "stream": "benchmarks"}  # kind → what `remnant list` shows of it
IN_FILE = ".py:"  # a name with this in it is `path/to/file.py:Name`, a thing in a file of the user's own


class UnknownNameError(UserError, KeyError):
    """No method, network or stream has this name."""

    def __str__(self) -> str:  # KeyError would quote the message
        return str(self.args[0])


class Registry(UserDict[str, T]):
    """Things of one kind by name.

    A name is a registered name, an entry point of an installed package, or `path/to/file.py:Name`. Iteration gives the
    registered names and the entry points.

    Args:
        kind: The word for such a thing in error messages: "method", "network", "stream".
        group: The entry-point group, such as `remnant.methods`.

    >>> shapes = Registry("shape", "example.shapes")
    >>> shapes["square"] = "four sides"
    >>> shapes["sqare"]
    Traceback (most recent call last):
    remnant.registry.UnknownNameError: No shape called 'sqare'. Did you mean 'square'?
    """

    def __init__(self, kind: str, group: str) -> None:
        super().__init__()
        self.kind, self.group = kind, group
        self._objects: dict[str, T] = {}  # by the reference that `name_of` gave them

    def __missing__(self, name: str) -> T:
        if name in self._objects:
            return self._objects[name]
        if name.endswith(".py"):
            raise UnknownNameError(f"{name}: which {self.kind} in it? Write {name}:NAME.")
        if IN_FILE in name:
            return load_from_file(name)
        for point in _entry_points(self.group, tuple(sys.path)).select(name=name):
            with _explained(f"The {self.kind} '{name}' ({point.value})"):
                found = point.load()
            return found
        more = f"  (remnant list {LISTS[self.kind]} shows all.)" if self.kind in LISTS else ""
        raise UnknownNameError(f"No {self.kind} called '{name}'. {did_you_mean(name, self, more)}")

    def __iter__(self) -> Iterator[str]:
        return iter([*self.data, *sorted(_entry_points(self.group, tuple(sys.path)).names - self.data.keys())])

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __len__(self) -> int:
        return len(set(self))

    def name_of(self, thing: T | str) -> str:
        """Returns a name that leads to `thing` in any process: its registered name, or `path/to/file.py:Name`."""
        if isinstance(thing, str):
            return thing
        for name, registered in self.data.items():
            if registered is thing:
                return name
        own_name = getattr(thing, "__qualname__", "")
        module = sys.modules.get(getattr(thing, "__module__", None) or "")
        file = Path(getattr(module, "__file__", None) or "")
        if getattr(module, own_name, None) is not thing or not file.is_file():
            raise UnknownNameError(
                f"{thing!r} cannot be found by name from another process. Define the {self.kind} at the top level of a "
                "Python file."
            )
        if file.is_relative_to(Path.cwd()):
            file = file.relative_to(Path.cwd())
        self._objects[f"{file}:{own_name}"] = thing  # the file need not be run a second time in this process
        return f"{file}:{own_name}"


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    """The entry points on `sys.path`. Reading them takes 15 ms, which would slow down every look at a registry."""
    return entry_points(group=group)


def file_of(name: str) -> Path:
    """Returns the file of `path/to/file.py:Name`."""
    return Path(name.rpartition(":")[0]).expanduser()


def load_from_file(reference: str) -> Any:
    """Returns the object that `path/to/file.py:Name` names. The file runs once, with its folder on the import path."""
    path, name = file_of(reference), reference.rpartition(":")[2]
    if not path.is_file():
        raise UnknownNameError(f"There is no file {path}.")
    if not name.isidentifier():
        raise UnknownNameError(f"'{reference}': expected path/to/file.py:Name.")
    module = _import(path.resolve(), path.stat().st_mtime_ns)
    if not hasattr(module, name):
        own = [key for key, item in vars(module).items() if getattr(item, "__module__", None) == module.__name__]
        raise UnknownNameError(f"{path} has no '{name}'. {did_you_mean(name, own)}")
    return getattr(module, name)


@cache
def _import(path: Path, changed: int) -> ModuleType:
    """Runs the file as a module of its own; again only after it has `changed`."""
    # Two files of the same name in different folders need different module names.
    module = ModuleType(f"remnant_own_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look up their module here
    sys.path.insert(0, str(path.parent))
    try:
        with _explained(str(path)):
            exec(compile(path.read_bytes(), path, "exec"), vars(module))
    finally:
        sys.path.remove(str(path.parent))
    return module


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UnknownNameError(f"{what} could not be run: {type(error).__name__}: {error}.") from error
