"""Small JSON files of a run: written for people to read, numbers kept to the last digit (NaN and infinities too)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import RunError, read, write


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write(path, (json.dumps(content, indent=2, default=number) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file."""
    data = read(path)
    if data is None:
        return None
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except ValueError as error:
        raise damaged(path, error) from error
    return content


def canonical(content: Mapping[str, Any]) -> str:
    """The same text for the same content, as a file would give it back."""
    return json.dumps(content, sort_keys=True, default=number)


def damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        f"{path} is damaged ({error}). Remove its folder to run it again, or put the file back from a copy."
    )


def number(value: Any) -> Any:
    """Numpy's and torch's numbers as Python's."""
    if getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"A run's files hold numbers, strings, lists and dicts, not {value!r} ({type(value).__name__}).")
