"""`--set key=value`: reading overrides, merging them into settings, and refusing those that contradict each other."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, NamedTuple

from remnant.errors import nearest
from remnant.options import Kind, OptionError
from remnant.registry import is_file_reference

from .schema import EARLY_STOPPING, Section

# Our settings, each with the names that other libraries use for it.
OTHER_NAMES = {
    "lr": ("learning_rate", "step_size"),
    "threshold": ("eps", "epsilon", "energy"),
    "memory": ("buffer_size", "mem_size", "memory_size", "n_memories"),
    "strength": ("lambda", "lamb", "ewc_lambda"),
    "training.batch": ("batch_size", "bs"),
    "training.epochs": ("n_epochs", "num_epochs"),
    "network.name": ("model", "arch", "architecture"),
    "network.hidden": ("hidden_size", "hidden_sizes"),
    "stream.tasks": ("n_tasks", "num_tasks"),
    "optimizer.name": ("opt", "optim", "optimiser"),
    "optimizer.weight_decay": ("wd", "l2"),
}


class Change(NamedTuple):
    """One `--set key=value`; `label` is that text. `located` adds its section, setting and, in a table, the part."""

    key: str
    value: Any
    label: str
    section: str = "options"
    name: str = ""
    part: str = ""


def parse(overrides: Sequence[str]) -> list[Change]:
    """Reads `key=value` texts. `network=…` and `optimizer=…` are short for their names."""
    parsed: dict[str, Change] = {}
    for text in overrides:
        key, equals, value = (part.strip() for part in text.partition("="))
        label = f"--set {_shortened(key)}={_shortened(value)}"
        if not key or not equals or not value:
            raise OptionError(f"--set {_shortened(text)}: expected key=value, for example lr=0.1 or training.epochs=1.")
        key = f"{key}.name" if key in ("network", "optimizer") else key
        if key in parsed:
            raise OptionError(f"{parsed[key].label} {label}: {key} is set twice. Give one of them.")
        parsed[key] = Change(key, _value(value, label), label)
    return list(parsed.values())


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


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


def located(change: Change, sections: Mapping[str, Section], more: str) -> Change:
    """Finds the setting that is changed; if there is none, raises an OptionError that ends with `more`."""
    first, _, rest = change.key.partition(".")
    section, name = (first, rest) if first in sections and rest else ("options", change.key)
    options = sections[section].options
    if name in options:
        return change._replace(section=section, name=name)
    name, _, part = name.partition(".")
    if part and name in options and _form(options[name].kind, part):
        return change._replace(section=section, name=name, part=part)
    hint = _hint(change.key, first if first in sections else section, sections)
    raise OptionError(f"{change.label}: no such setting of {sections[section].owner}. {hint}  {more}")


def _hint(key: str, section: str, sections: Mapping[str, Section]) -> str:
    """Suggests the setting whose last word is nearest to that of `key`, if possible one of the same section."""
    word = key.rpartition(".")[2].lower().replace("-", "_")
    if word in ("seed", "seeds"):
        return "Choose seeds with --seeds (2, is seed 2 alone)."
    keys = {where: [write_key(where, name) for name in each.options] for where, each in sections.items()}
    for name, option in sections["options"].options.items():
        keys["options"] += [f"{name}.{part}" for form in option.kind.forms for part in form if "*" not in part]
    every = [each for some in keys.values() for each in some]
    found = next((ours for ours, others in OTHER_NAMES.items() if word in others and ours in every), None)
    for candidates in (keys[section], every):
        by_last_word = {candidate.rpartition(".")[2]: candidate for candidate in reversed(candidates)}
        found = found or by_last_word.get(nearest(word, by_last_word, cutoff=0.6) or "")
    return f"Did you mean '{found}'?" if found else f"There are: {', '.join(keys[section])}."


def write_key(section: str, name: str) -> str:
    """Returns the key as `--set` takes it: the method's own options have no prefix."""
    return name if section == "options" else f"{section}.{name}"


def write_value(value: Any) -> str:
    """Returns the value as `--set` takes it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {write_value(item)}' for key, item in value.items())}}}"
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def merged(kind: Kind, old: Any, part: str, value: Any) -> dict[str, Any]:
    """Returns the table with one part set. A part of another form starts that form from nothing."""
    table: dict[str, Any] = old if isinstance(old, dict) else {}
    if not table:
        with suppress(OptionError):
            table = kind.read(old) or {}
    form = _form(kind, part)
    kept = {key: item for key, item in table.items() if _form(kind, key) == form}
    key, _, pattern = part.partition(".")
    if pattern and f"{key}.*" in form:  # a layer's name has dots in it: the pattern is all that follows `layers.`
        layers = kept.get(key)
        return {key: {**(layers if isinstance(layers, dict) else {}), pattern: value}}
    return {**kept, part: value}


def refuse_contradictions(changes: Sequence[Change], sections: Mapping[str, Section]) -> None:
    """Raises an OptionError if one change would undo another."""
    for one, other in combinations(changes, 2):
        reason = ""
        if one.section == other.section == "training" and {one.name, other.name} <= set(EARLY_STOPPING):
            if (one.value == "none") != (other.value == "none"):
                reason = "one turns early stopping off, the other sets it"
        elif (one.section, one.name) == (other.section, other.name):
            forms = [_form_of_change(sections[each.section].options[each.name].kind, each) for each in (one, other)]
            if one.part and not other.part:
                reason = f"the second sets all of {one.name} and would undo the first"
            elif forms[0] != forms[1]:
                reason = f"these are different ways to write {one.name}, and the second would undo the first"
        if reason:
            raise OptionError(f"{one.label} {other.label}: {reason}. Give one of them.")


def _form_of_change(kind: Kind, change: Change) -> tuple[str, ...]:
    key = change.part or (next(iter(change.value), "") if isinstance(change.value, dict) else "")
    return _form(kind, key) if key else kind.forms[0]


def _form(kind: Kind, key: str) -> tuple[str, ...]:
    """Returns the keys of the form that `key` belongs to; none if it belongs to no form."""
    table = key.partition(".")[0]
    return next((form for form in kind.forms if {"*", key, f"{table}.*"} & set(form)), ())
