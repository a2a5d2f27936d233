"""`--set key=value`: reads overrides, finds the settings they change, and refuses overrides that contradict each other."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, NamedTuple

from remnant.errors import nearest
from remnant.options import Kind, Option, OptionError
from remnant.registry import IN_FILE

from .recipe import section_of

EARLY_STOPPING = ("training.patience", "training.factor", "training.lr_min")  # set together or not at all
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


class Section(NamedTuple):
    """Settings by key (`network.width`), and the name of the network, method, stream or optimizer they belong to."""

    owner: str
    options: dict[str, Option]


class Change(NamedTuple):
    """One `--set key=value`; `label` is that text. `part` is set if only one entry of a table is changed."""

    key: str
    value: Any
    label: str
    part: str = ""


def parse(overrides: Sequence[str]) -> list[Change]:
    """Reads `key=value` texts. `network=…` and `optimizer=…` are short for their names."""
    parsed: dict[str, Change] = {}
    for text in overrides:
        key, equals, value = (part.strip() for part in text.partition("="))
        label = f"--set {text}" if len(text) <= 200 else f"--set {text[:200]}…"
        if not key or not equals or not value:
            raise OptionError(f"{label}: expected key=value, for example lr=0.1 or training.epochs=1.")
        key = f"{key}.name" if key in ("network", "optimizer") else key
        if key in parsed:
            raise OptionError(f"{parsed[key].label} {label}: {key} is set twice. Use only one of them.")
        parsed[key] = Change(key, _value(value, label), label)
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
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text) or IN_FILE in text:
        return text
    raise OptionError(f"{label}: not a value. Write 0.1, 100, true, a word, [1, 2] or {{start = 0.9, step = 0.01}}.")


def located(change: Change, sections: Mapping[str, Section], more: str) -> Change:
    """Splits the key of a change into setting and part; if there is no such setting, raises an error that ends with `more`."""
    for key, option in ((key, option) for section in sections.values() for key, option in section.options.items()):
        if change.key == key:
            return change
        part = change.key.removeprefix(f"{key}.")
        if part != change.key and _form(option.kind, part):
            return change._replace(key=key, part=part)
    first = change.key.partition(".")[0]
    section = first if first in sections else "options"
    hint = _hint(change.key, section, sections)
    raise OptionError(f"{change.label}: no such setting of {sections[section].owner}. {hint}  {more}")


def _hint(key: str, section: str, sections: Mapping[str, Section]) -> str:
    """Suggests the setting whose last word is nearest to the last word of `key`, if possible from the same section."""
    word = key.rpartition(".")[2].lower().replace("-", "_")
    if word in ("seed", "seeds"):
        return "Choose seeds with --seeds (write 2, for seed 2 alone)."
    keys = {name: list(each.options) for name, each in sections.items()}
    for name, option in sections["options"].options.items():
        keys["options"] += [f"{name}.{part}" for form in option.kind.forms for part in form if "*" not in part]
    every = [each for some in keys.values() for each in some]
    found = next((ours for ours, others in OTHER_NAMES.items() if word in others and ours in every), None)
    for candidates in (keys[section], every):
        by_last_word = {candidate.rpartition(".")[2]: candidate for candidate in reversed(candidates)}
        found = found or by_last_word.get(nearest(word, by_last_word, cutoff=0.6) or "")
    if found:
        return f"Did you mean '{found}'?"
    return f"There are: {', '.join(keys[section])}." if keys[section] else "It has no settings."


def merged(kind: Kind, old: Any, part: str, value: Any) -> dict[str, Any]:
    """Returns the table with one part set. Drops the parts of other forms."""
    table: dict[str, Any] = {}
    with suppress(OptionError):
        table = old if isinstance(old, dict) else kind.read(old) or {}
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
        if one.key == other.key:
            kind = sections[section_of(one.key)].options[one.key].kind
            if one.part and not other.part:
                reason = f"the second sets all of {one.key} and would undo the first"
            elif _form_of_change(kind, one) != _form_of_change(kind, other):
                reason = f"these are different ways to write {one.key}, and the second would undo the first"
        elif {one.key, other.key} <= set(EARLY_STOPPING) and (one.value == "none") != (other.value == "none"):
            reason = "one turns early stopping off, the other sets it"
        if reason:
            raise OptionError(f"{one.label} {other.label}: {reason}. Use only one of them.")


def _form_of_change(kind: Kind, change: Change) -> tuple[str, ...]:
    key = change.part or (next(iter(change.value), "") if isinstance(change.value, dict) else "")
    return _form(kind, key) if key else kind.forms[0]


def _form(kind: Kind, key: str) -> tuple[str, ...]:
    """Returns the keys of the form that `key` belongs to; none if it belongs to no form."""
    table = key.partition(".")[0]
    return next((form for form in kind.forms if {"*", key, f"{table}.*"} & set(form)), ())
