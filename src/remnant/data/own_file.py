"""A user's own stream, from a Python file of theirs."""

import importlib.util
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from .errors import DataError, did_you_mean
from .stream import Stream


def load_file(spec: str, seed: int = 0, **options: Any) -> Stream:
    """The stream of `path/to/file.py:name`: a Stream, or a function that gives one (called with `seed` if it takes one)."""
    place, _, name = spec.rpartition(":")
    path = Path(place).expanduser()
    if not path.is_file() or not name.isidentifier():
        raise DataError(f"'{spec}': expected path/to/file.py:name, and {path} to be a file.")
    module = _import(path)
    value = getattr(module, name, None)
    if value is None:
        own = [key for key, item in vars(module).items() if isinstance(item, Stream) or inspect.isfunction(item)]
        raise DataError(f"{path} has no '{name}'. {did_you_mean(name, own)}")
    if not isinstance(value, Stream):
        value = _call(value, spec, seed, options)
    elif options:
        raise DataError(f"'{spec}' is a ready stream and takes no options; make it a function to give it some.")
    if not isinstance(value, Stream):
        raise DataError(f"'{spec}' gave a {type(value).__name__}, not a remnant.data.Stream.")
    return replace(value, seed=seed, options=options)


def _call(make: Any, spec: str, seed: int, options: dict[str, Any]) -> Any:
    if not callable(make):
        raise DataError(f"'{spec}' is a {type(make).__name__}, not a Stream nor a function that gives one.")
    parameters = inspect.signature(make).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            if option not in parameters:
                known = [p for p in parameters if p != "seed"]
                raise DataError(
                    f"{option}={options[option]!r}: no such option of '{spec}'. {did_you_mean(option, known)}"
                )
        seeded = {"seed": seed} if "seed" in parameters else {}
    else:
        seeded = {"seed": seed}
    return make(**seeded, **options)


def _import(path: Path) -> Any:
    """Runs the file as a module of its own; its folder is on the path meanwhile, as for a script."""
    name = f"remnant_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} could not be run: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module
