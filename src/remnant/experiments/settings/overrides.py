"""`--set key=value`: reading overrides, merging them into settings, and refusing those that contradict each other."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from remnant.errors import shorten
from remnant.options import Kind, OptionError, Refused
from remnant.registry import is_file_reference
from remnant.suggest import nearest

from .schema import EARLY_STOPPING, Section

# Names that other libraries use for our settings.
OTHER_NAMES = {
    "learning_rate": "lr",
    "step_size": "lr",
    "eps": "threshold",
    "epsilon": "threshold",
    "energy": "threshold",
    "n_samples": "samples",
    "buffer_size": "memory",
    "mem_size": "memory",
    "n_memories": "memory",
    "lambda": "strength",
    "ewc_lambda": "strength",
    "lamb": "strength",
    "batch_size": "training.batch",
    "bs": "training.batch",
    "n_epochs": "training.epochs",
    "num_epochs": "training.epochs",
    "hidden_size": "network.hidden",
    "hidden_sizes": "network.hidden",
    "model": "network.name",
    "arch": "network.name",
    "n_tasks": "stream.tasks",
    "num_tasks": "stream.tasks",
    "wd": "optimizer.weight_decay",
    "opt": "optimizer.name",
    "optimiser": "optimizer.name",
}


class Override(NamedTuple):
    """One `--set key=value`. `label` is the text that error messages begin with."""

    key: str
    value: Any
    label: str


class Change(NamedTuple):
    """An override at its place: a section, a setting in it and, for a table, the part of it (`start` of the threshold)."""

    section: str
    name: str
    part: str
    value: Any
    label: str


def parse(overrides: Sequence[str]) -> list[Override]:
    """Reads `key=value` texts. `network=…` and `optimizer=…` are short for their names."""
    parsed: dict[str, Override] = {}
    for text in overrides:
        key, equals, value = (part.strip() for part in text.partition("="))
        label = f"--set {shorten(key)}={shorten(value)}"
        if not key or not equals or not value:
            raise OptionError(f"--set {shorten(text)}: expected key=value, for example lr=0.1 or training.epochs=1.")
        key = f"{key}.name" if key in ("network", "optimizer") else key
        if key in parsed:
            raise OptionError(f"{parsed[key].label} {label}: {key} is set twice. Give one of them.")
        parsed[key] = Override(key, _value(value, label), label)
    return list(parsed.values())


def _value(text: str, label: str) -> Any:
    """Reads a TOML value, a bare word, a file reference, or a number as people write it (.95)."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # not TOML; or too many digits or brackets
        parsed = {}
    if parsed.keys() == {"value"}:
        return parsed["value"]
    if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE):
        return float(text)
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text) or is_file_reference(text):
        return text
    raise OptionError(f"{label}: not a value. Write 0.1, 100, true, a word, [1, 2] or {{start = 0.9, step = 0.01}}.")


def located(override: Override, sections: Mapping[str, Section], more: str) -> Change:
    """Finds the setting that an override changes; if there is none, raises an OptionError that ends with `more`."""
    key, value, label = override
    if key.rpartition(".")[2] in ("seed", "seeds"):
        raise OptionError(f"{label}: a seed is not a setting. Choose seeds with --seeds (2, is seed 2 alone).")
    first, _, rest = key.partition(".")
    section, name = (first, rest) if first in sections and rest else ("options", key)
    options = sections[section].options
    if name in options:
        return Change(section, name, "", value, label)
    name, _, part = name.partition(".")
    if part and name in options and _form(options[name].kind, part):
        return Change(section, name, part, value, label)
    hint = _hint(key, first if first in sections else section, sections)
    raise OptionError(f"{label}: no such setting of {sections[section].owner}. {hint}  {more}")


def _hint(key: str, section: str, sections: Mapping[str, Section]) -> str:
    """Suggests the setting whose last word is nearest to that of `key`, if possible one of the same section."""
    keys = {where: [write_key(where, name) for name in each.options] for where, each in sections.items()}
    for name, option in sections["options"].options.items():
        keys["options"] += [f"{name}.{part}" for form in option.kind.forms for part in form if "*" not in part]
    every = [each for some in keys.values() for each in some]
    word = key.rpartition(".")[2].lower().replace("-", "_")
    found = OTHER_NAMES.get(word)
    if found not in every:
        found = _nearest_key(word, keys[section]) or _nearest_key(word, every)
    return f"Did you mean '{found}'?" if found else f"There are: {', '.join(keys[section])}."


def _nearest_key(word: str, keys: Sequence[str]) -> str | None:
    by_last_word = {key.rpartition(".")[2]: key for key in reversed(keys)}
    near = nearest(word, by_last_word, cutoff=0.6)
    return by_last_word[near] if near else None


def write_key(section: str, name: str) -> str:
    """Returns the key as `--set` takes it: the method's own options have no prefix."""
    return name if section == "options" else f"{section}.{name}"


def merged(kind: Kind, old: Any, part: str, value: Any) -> dict[str, Any]:
    """Returns the table with one part set. A part of another form starts that form from nothing."""
    if not isinstance(old, dict):
        try:
            old = kind.read(old) or {}
        except Refused:
            old = {}
    form = _form(kind, part)
    kept = {key: item for key, item in old.items() if _form(kind, key) == form}
    table, _, pattern = part.partition(".")
    if pattern and f"{table}.*" in form:  # a layer's name has dots in it: the pattern is all that follows `layers.`
        return {table: {**kept.get(table, {}), pattern: value}}
    return {**kept, part: value}


def refuse_contradictions(changes: Sequence[Change], sections: Mapping[str, Section]) -> None:
    """Raises an OptionError if one change would undo another."""
    for one, other in combinations(changes, 2):
        reason = ""
        if one.section == other.section == "training" and {one.name, other.name} <= set(EARLY_STOPPING):
            if (one.value == "none") != (other.value == "none"):
                reason = "one turns early stopping off, the other sets it"
        elif one[:2] == other[:2]:
            kind = sections[one.section].options[one.name].kind
            if one.part and not other.part:
                reason = f"the second sets all of {one.name} and would undo the first"
            elif _form_of_change(kind, one) != _form_of_change(kind, other):
                reason = f"these are different ways to write {one.name}, and the second would undo the first"
        if reason:
            raise OptionError(f"{one.label} {other.label}: {reason}. Give one of them.")


def _form_of_change(kind: Kind, change: Change) -> tuple[str, ...]:
    if change.part:
        return _form(kind, change.part)
    if isinstance(change.value, dict) and change.value:
        return _form(kind, next(iter(change.value)))
    return kind.forms[0]


def _form(kind: Kind, key: str) -> tuple[str, ...]:
    """Returns the keys of the form that `key` belongs to; none if it belongs to no form."""
    table = key.partition(".")[0]
    return next((form for form in kind.forms if {"*", key, f"{table}.*"} & set(form)), ())
