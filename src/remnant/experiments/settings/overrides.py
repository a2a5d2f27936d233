"""What `--set key=value` says, and what may not be said together."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

from . import schema as known
from .types import THRESHOLD_FORMS, SettingsError


class Override(NamedTuple):
    """`label` is how to name key and value in a message."""

    key: str
    value: Any
    label: str


def parse(override: str) -> Override:
    key, equals, text = (part.strip() for part in override.partition("="))
    label = f"--set {shorten(key)}={shorten(text)}"
    if not key or not equals or not text:
        raise SettingsError(f"--set {shorten(override)}: expected key=value, for example lr=0.1 or training.epochs=1.")
    return Override(key, _value(text, label), label)


def refuse_contradictions(overrides: Sequence[Override]) -> None:
    """Of a key that is said twice the last counts; no other may undo another without a word."""
    keys = [override.key for override in overrides]
    last = [override for n, override in enumerate(overrides, 1) if override.key not in keys[n:]]
    for earlier, later in combinations(last, 2):
        if why := _contradiction(earlier, later):
            raise SettingsError(f"{earlier.label} {later.label}: {why}. Give one of them.")


def with_part(threshold: Any, part: str, value: Any) -> dict[str, Any]:
    """The threshold with one part set. A part of another form starts that form afresh."""
    name, _, pattern = part.partition(".")
    form = _form(name)
    old = threshold if isinstance(threshold, dict) else {}
    kept = {key: old[key] for key in old if key in form}
    # A layer's name has dots in it, so all that follows `layers.` is the pattern.
    return {**kept, name: {**kept.get("layers", {}), pattern: value} if pattern else value}


def with_layer(table: Any, pattern: str, value: Any) -> dict[str, Any]:
    """The table with one pattern of layer names set; a number there was for all layers."""
    old = table if isinstance(table, dict) else {} if table is None else {"*": table}
    return {**old, pattern: value}


def shorten(text: str, most: int = 200) -> str:
    """For a message: what it is about, not all of it."""
    return text if len(text) <= most else f"{text[:most]}…"


def _contradiction(earlier: Override, later: Override) -> str:
    """Why the later one would undo the earlier, if it would."""
    stopping = {f"training.{name}" for name in known.EARLY_STOPPING}
    if {earlier.key, later.key} <= stopping and (earlier.value == "none") != (later.value == "none"):
        return "one turns early stopping off, the other sets it"
    name, _, part = earlier.key.partition(".")
    table, _, other = later.key.partition(".")
    if name != table or table not in {"threshold", *known.PER_LAYER}:
        return ""
    if part and not other:
        return f"the second says all of {table} and would undo the first"
    if table == "threshold" and _written(part, earlier.value) != _written(other, later.value):
        return "these are different ways to write a threshold, and the second would undo the first"
    return ""


def _written(part: str, threshold: Any) -> set[str]:
    """The form in which a threshold, or a part of one, is written."""
    if part or not isinstance(threshold, dict):
        return _form(part.partition(".")[0] or "value")
    return _form(next(iter(threshold), "value"))


def _form(name: str) -> set[str]:
    return next((form for form in THRESHOLD_FORMS if name in form), set())


def _value(text: str, label: str) -> Any:
    """A TOML value; also a bare word, which is a string, and numbers as people write them (.95)."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML; or too many digits, or brackets
        parsed = {}
    if parsed.keys() == {"value"}:
        return parsed["value"]
    if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE):
        return float(text)
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text):
        return text
    raise SettingsError(f"{label}: not a value. Write 0.1, 100, true, a word, [1, 2] or {{start = 0.9, step = 0.01}}.")
