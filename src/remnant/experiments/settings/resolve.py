"""The settings of a run: a recipe, and what the person at the keyboard changed in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from remnant.data.errors import did_you_mean

from . import schema as known
from .no_method import not_on, not_without_benchmark
from .overrides import parse, refuse_contradictions, shorten, with_layer, with_part
from .recipe import FALLBACK, SECTIONS, PaperResult, Recipe, is_own_stream, recipe, recipe_names
from .schema import Known
from .types import THRESHOLD_FORMS, SettingsError

__all__ = [
    "PaperResult",
    "Recipe",
    "Setting",
    "Settings",
    "SettingsError",
    "describe",
    "is_own_stream",
    "recipe",
    "recipe_names",
    "resolve",
    "shorten",
]


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, except its seed and the machine.

    The sections hold what the recipe says and what was changed: an option that neither names keeps its owner's default
    and is left out, so that a network or stream may gain options without giving old runs a new digest.
    """

    benchmark: str
    method: str
    protocol: str  # "paper" or "sane"
    stream: dict[str, Any]
    network: dict[str, Any]
    training: dict[str, Any]
    options: dict[str, Any]  # the method's own

    def __post_init__(self) -> None:
        # Of patterns of layer names the first that matches counts. Order is easily lost (sorted JSON, a merge): the special
        # pattern always goes before the general.
        options = dict(self.options)
        threshold = options.get("threshold")
        if isinstance(threshold, dict) and "layers" in threshold:
            options["threshold"] = {"layers": dict(sorted(threshold["layers"].items(), key=_most_special_first))}
        for name in known.PER_LAYER & options.keys():
            if isinstance(options[name], dict):
                options[name] = dict(sorted(options[name].items(), key=_most_special_first))
        object.__setattr__(self, "options", options)

    def stream_options(self, seed: int) -> dict[str, Any]:
        """The options of `load_stream` for one seed: those that follow the seed have their value."""
        options = deepcopy(self.stream)
        for (benchmark, option), count in known.SEEDED.items():
            if benchmark == self.benchmark and options.get(option) == "seed":
                options[option] = seed % count
        return options

    def as_dict(self) -> dict[str, Any]:
        return {field.name: deepcopy(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Settings:
        """What `as_dict` gave, also by way of JSON."""
        names = {field.name for field in fields(cls)}
        if content.keys() != names:
            wrong = ", ".join(sorted(content.keys() ^ names))
            raise SettingsError(f"Not the settings of a run: missing or not known there: {wrong}.")
        return cls(**deepcopy(dict(content)))

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that tell these settings from others, on any machine."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class Setting(NamedTuple):
    """One line of `remnant list settings`. `source` is the recipe's file, or whose default it is."""

    key: str
    value: Any
    allowed: str
    source: str


def resolve(benchmark: str, method: str, overrides: Sequence[str] = (), protocol: str = "paper") -> Settings:
    """The settings of `method` on `benchmark`, each override (`lr=0.1`, `training.epochs=1`) checked and applied."""
    base = recipe(benchmark, protocol)
    return _Draft(base, method, protocol).override(overrides).finished()


def describe(benchmark: str | None, method: str) -> list[Setting]:
    """Every setting one can change, with what it is and what it may be; `None` describes a stream without a recipe."""
    base = recipe(benchmark or f"{FALLBACK}.py:stream", "paper")
    if benchmark is None and method not in base.methods:
        raise not_without_benchmark(base, method)
    draft = _Draft(base, method, "paper")
    owners = {"stream": base.benchmark, "network": draft.values["network"]["name"], "training": "training"}
    lines = []
    for section, settings in draft.known.items():
        for name, (kind, default) in settings.items():
            stated = name in draft.values[section]
            value = draft.values[section][name] if stated else default
            source = base.file if stated else f"default of {owners.get(section, method)}"
            lines.append(Setting(_key(section, name), value, kind.words, source))
    return lines


class _Draft:
    """Settings on their way from a recipe to a run."""

    def __init__(self, base: Recipe, method: str, protocol: str) -> None:
        if method not in base.methods:
            raise not_on(base, method)
        if "lr" not in base.methods[method]:
            raise SettingsError(f"Recipe of {base.benchmark}: methods.{method} has no lr, which every method takes.")
        self.base, self.method, self.protocol = base, method, protocol
        self.values: dict[str, dict[str, Any]] = {
            "options": deepcopy(base.methods[method]),
            **{section: deepcopy(base.section(section, method)) for section in SECTIONS},
        }
        stream = known.stream_settings(base.benchmark)
        self.any_stream_option = stream is None
        self.known: dict[str, dict[str, Known]] = {
            "options": known.method_settings(base, method),
            "training": known.TRAINING,
            "network": known.network_settings(self.values["network"]["name"]),
            "stream": stream or {},
        }
        for section, values in self.values.items():
            for name, value in values.items():
                values[name] = self._known(section, name, f"Recipe of {base.benchmark}").kind.check(
                    _key(section, name), value, f"Recipe of {base.benchmark}: {_key(section, name)} = {value!r}"
                )

    def override(self, overrides: Sequence[str]) -> _Draft:
        parsed = [parse(override) for override in overrides]
        # First, because which options there are depends on it.
        for key, value, label in parsed:
            if key == "network.name":
                self._switch_network(value, label)
        # All are put in before any is checked: a table may need several overrides to be whole.
        labels: dict[tuple[str, str], str] = {}
        for key, value, label in parsed:
            section, name, part = self._place(key, label)
            labels[section, name] = " ".join(filter(None, (labels.get((section, name)), label)))
            old = self.values[section].get(name)
            put = with_part if name == "threshold" else with_layer
            self.values[section][name] = put(old, part, value) if part else value
        refuse_contradictions(parsed)
        for (section, name), label in labels.items():
            self._check(section, name, label)
        return self

    def finished(self) -> Settings:
        self._early_stopping_is_whole()
        return Settings(self.base.benchmark, self.method, self.protocol, **self.values)

    def _switch_network(self, name: Any, label: str) -> None:
        if str(name) not in known.networks():
            raise SettingsError(f"{label}: no such network. {did_you_mean(str(name), known.networks())}")
        if name != self.values["network"]["name"]:
            # The recipe's other options described its own network; the new one starts from its defaults.
            self.values["network"] = {"name": name}
            self.known["network"] = known.network_settings(name)
            self.values["options"].pop("layer_samples", None)  # of layers the new one does not have

    def _place(self, key: str, label: str) -> tuple[str, str, str]:
        """Section, name and part of a key: `threshold.start` is part `start` of the option `threshold`, `conv1` of
        `alpha_start.conv1` a layer's."""
        first, _, rest = key.partition(".")
        if first in SECTIONS and rest:
            self._known(first, rest, label)
            return first, rest, ""
        parts = rest in set().union(*THRESHOLD_FORMS) or rest.startswith("layers.")
        if first == "threshold" and rest and not parts:
            raise self._no_such("options", key, label)
        table = rest and (first == "threshold" or first in known.PER_LAYER)
        self._known("options", first if table else key, label)
        return "options", first if table else key, rest if table else ""

    def _known(self, section: str, name: str, label: str) -> Known:
        if section == "stream" and self.any_stream_option:
            if name == "seed":
                raise SettingsError(
                    f"{label}: a stream has the run's seed. Choose it with --seeds (2, is seed 2 alone)."
                )
            return known.own_option()
        if name not in self.known[section]:
            raise self._no_such(section, _key(section, name), label)
        return self.known[section][name]

    def _no_such(self, section: str, key: str, label: str) -> SettingsError:
        owner = {"stream": self.base.benchmark, "network": self.values["network"]["name"], "training": "training"}
        keys = {where: [_key(where, name) for name in settings] for where, settings in self.known.items()}
        if "threshold" in self.known["options"]:
            keys["options"] += [f"threshold.{part}" for form in THRESHOLD_FORMS for part in sorted(form)]
        own = keys[key if key in SECTIONS else section]
        near = _nearest(key, own) or _nearest(key, [each for others in keys.values() for each in others])
        hint = f"Did you mean '{near}'?" if near else f"There are: {', '.join(own)}."
        here = "" if is_own_stream(self.base.benchmark) else f" --benchmark {self.base.benchmark}"
        return SettingsError(
            f"{label}: no such setting of {owner.get(section, self.method)}. {hint}"
            f"  (remnant list settings {self.method}{here} shows all.)"
        )

    def _check(self, section: str, name: str, label: str) -> None:
        kind, default = self._known(section, name, label)
        if name not in self.values[section]:
            return  # went with another number of early stopping
        values, stated = self.values[section], self.base.section(section, self.method) if section in SECTIONS else {}
        if kind.optional and values[name] == "none":
            # Without one of its numbers there is no early stopping.
            for gone in known.EARLY_STOPPING if name in known.EARLY_STOPPING else (name,):
                values.pop(gone, None)
            return
        values[name] = kind.check(_key(section, name), values[name], label)
        if section in ("stream", "network") and name not in stated and values[name] == default:
            del values[name]  # says what is so anyway

    def _early_stopping_is_whole(self) -> None:
        training = self.values["training"]
        missing = [name for name in known.EARLY_STOPPING if name not in training]
        if 0 < len(missing) < len(known.EARLY_STOPPING):
            given = next(name for name in known.EARLY_STOPPING if name in training)
            needs = " and ".join(f"training.{name}" for name in missing)
            raise SettingsError(f"training.{given}={training[given]}: early stopping needs {needs} too.")


def _key(section: str, name: str) -> str:
    """How a person writes it: the method's own options have no section."""
    return name if section == "options" else f"{section}.{name}"


def _most_special_first(layer: tuple[str, float]) -> tuple[bool, int, str]:
    pattern = layer[0]
    return any(wild in pattern for wild in "*?["), -len(pattern), pattern


def _nearest(key: str, keys: Sequence[str]) -> str | None:
    """The key whose last word is nearest to this one's: `training.epochs` for `epoch`."""
    by_last_word = {known_key.rpartition(".")[2]: known_key for known_key in reversed(keys)}
    near = get_close_matches(key.rpartition(".")[2].lower(), by_last_word, n=1)
    return by_last_word[near[0]] if near else None
