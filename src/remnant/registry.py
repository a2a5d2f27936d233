"""Methods, networks and streams by name: built in, from an installed package, or from a file of one's own."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import UserError
from .suggest import did_you_mean

T = TypeVar("T")


class UnknownNameError(UserError, LookupError):
    """No such method, network or stream."""

    def __str__(self) -> str:  # KeyError's kin would quote the message
        return str(self.args[0])


class Registry(Mapping[str, T], Generic[T]):
    """Things of one kind by name.

    A name is one that was registered, an entry point of an installed package (`group`), or `path/to/file.py:Name`.

    Args:
        kind: what the things are, in error messages: "method", "network", "stream".
        group: the entry-point group, such as `remnant.methods`.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._registered: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that registers what it decorates under `name`."""

        def registered(thing: T) -> T:
            self._registered[name] = thing
            return thing

        return registered

    def __setitem__(self, name: str, thing: T) -> None:
        self._registered[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._registered[name]

    def __getitem__(self, name: str) -> T:
        if name in self._registered:
            return self._registered[name]
        if is_file_reference(name):
            found: T = load_from_file(name)
            return found
        for point in entry_points(group=self.group, name=name):
            loaded: T = point.load()
            return loaded
        raise UnknownNameError(f"No {self.kind} called '{name}'. {did_you_mean(name, self)}")

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __iter__(self) -> Iterator[str]:
        yield from self._registered
        yield from (name for name in entry_points(group=self.group).names if name not in self._registered)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def name_of(self, thing: Any) -> str:
        """The name of a thing given as a Python object: its registered name, or the file it is defined in."""
        if isinstance(thing, str):
            return thing
        for name, known in self._registered.items():
            if known is thing:
                return name
        file = inspect.getsourcefile(thing) if callable(thing) else None
        if file is None or not Path(file).is_file() or "." in thing.__qualname__:
            raise UnknownNameError(
                f"{thing!r} has no name that another process could find it by. Define the {self.kind} at the top level of "
                "a Python file."
            )
        return f"{file}:{thing.__qualname__}"


def is_file_reference(name: str) -> bool:
    """Whether `name` is `path/to/file.py:Name`."""
    return ".py:" in name


def file_of(name: str) -> Path:
    """The file of `path/to/file.py:Name`."""
    return Path(name.rpartition(":")[0]).expanduser()


def load_from_file(reference: str) -> Any:
    """What `path/to/file.py:Name` names. The file is run as a module of its own, with its folder on the path."""
    path, name = file_of(reference), reference.rpartition(":")[2]
    if not path.is_file() or not name.isidentifier():
        raise UnknownNameError(f"'{reference}': expected path/to/file.py:Name, and {path} to be a file.")
    module = _import(path)
    if not hasattr(module, name):
        own = [key for key, item in vars(module).items() if getattr(item, "__module__", None) == module.__name__]
        raise UnknownNameError(f"{path} has no '{name}'. {did_you_mean(name, own)}")
    return getattr(module, name)


def _import(path: Path) -> Any:
    name = f"remnant_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownNameError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UnknownNameError(f"{path} could not be run: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module
