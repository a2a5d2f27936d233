"""Imports on first use: torch takes a second to load and `remnant --help` does not need it, and extras may be missing."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from .errors import RunError


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes `__getattr__` and `__dir__` of a package (PEP 562) from name → the module that defines it, such as `.memory`."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *modules})


def import_extra(module: str, option: str, package: str = "") -> Any:
    """Imports a package that one option of the command line needs; if it is missing, RunError says how to install it."""
    with suppress(ImportError):
        found = import_module(module)
        if getattr(found, "__file__", None):  # not an empty folder of that name: runs with wandb leave one behind
            return found
    raise RunError(f"{option} needs a package: pip install {package or module}.")
