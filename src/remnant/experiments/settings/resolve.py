"""The settings of a run: a recipe, and the overrides of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from remnant.data import BENCHMARKS
from remnant.methods import METHODS, OPTIMIZERS, Method
from remnant.models import MODELS
from remnant.options import REQUIRED, OptionError
from remnant.registry import Registry, is_file_reference

from . import schema
from .overrides import located, merged, parse, refuse_contradictions, write_key, write_value
from .recipe import SECTIONS, Recipe, default_recipe, recipe
from .schema import EARLY_STOPPING, Section

NAMED: dict[str, Registry[Any]] = {"network": MODELS, "optimizer": OPTIMIZERS}  # sections with a name of their own


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, except its seed and the machine.

    The sections hold the recipe's values and those that were changed. All other options keep their defaults and are left
    out, so that a network or stream can gain options without giving old runs a new digest.

    Args:
        benchmark: the stream's name.
        method: the method's name.
        protocol: "paper" or "sane".
        stream: options of the stream.
        network: the network's `name` and options.
        training: fields of `remnant.training.Schedule`, except the learning rate.
        options: the method's options, always with `lr`.
        optimizer: the optimizer's `name` and options; empty for plain SGD.
    """

    benchmark: str
    method: str
    protocol: str
    stream: dict[str, Any]
    network: dict[str, Any]
    training: dict[str, Any]
    options: dict[str, Any]
    optimizer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The first layer pattern that matches counts, and JSON with sorted keys loses their order.
        object.__setattr__(self, "options", {name: _most_special_first(value) for name, value in self.options.items()})

    def as_dict(self) -> dict[str, Any]:
        """Returns the settings as tables for JSON. An empty `optimizer` is left out."""
        content = {each.name: deepcopy(getattr(self, each.name)) for each in fields(self)}
        return content if self.optimizer else {name: content[name] for name in content if name != "optimizer"}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Settings:
        """Returns the settings that `as_dict` gave, also after a round trip through JSON."""
        wrong = {each.name for each in fields(cls)} ^ {"optimizer", *content}
        if wrong:
            raise OptionError(f"These are not the settings of a run: missing or unknown: {', '.join(sorted(wrong))}.")
        return cls(**deepcopy(dict(content)))

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that identify the settings on any machine."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def _most_special_first(value: Any) -> Any:
    """Sorts the keys of tables: full names before patterns, long before short."""
    if not isinstance(value, dict):
        return value
    keys = sorted(value, key=lambda key: (any(wild in key for wild in "*?["), -len(key), key))
    return {key: _most_special_first(value[key]) for key in keys}


class Setting(NamedTuple):
    """One line of `remnant list settings`: `--set key=value` would change nothing. `source` says where the value is from."""

    key: str
    value: str
    allowed: str
    source: str


def resolve(
    benchmark: str | Callable[..., Any],
    method: str | type[Method],
    overrides: Sequence[str] = (),
    protocol: str = "paper",
) -> Settings:
    """Returns the settings of a method on a benchmark.

    Args:
        benchmark: a benchmark's name, `path/to/file.py:make`, or the stream function itself.
        method: a method's name, `path/to/file.py:MyMethod`, or the class itself.
        overrides: changes as `--set` takes them: `lr=0.1`, `training.epochs=1`, `optimizer=adamw`.
        protocol: "paper", or "sane" for running statistics and Eq. 5.

    Raises:
        OptionError: for an unknown name, an unknown setting, a value that a setting does not take, or overrides that
            contradict each other.

    >>> resolve("permuted-digits", "gpm", ["lr=0.1"]).options["lr"]
    0.1
    """
    draft = _Draft(recipe(BENCHMARKS.name_of(benchmark), protocol), METHODS.name_of(method))
    draft.apply(overrides)
    return draft.settings(protocol)


def describe(benchmark: str | None, method: str) -> list[Setting]:
    """Returns every setting that can be changed, with its value; without a benchmark, those of a user's own stream."""
    draft = _Draft(recipe(benchmark) if benchmark else default_recipe(), method)
    if benchmark:
        draft.sections["stream"] = schema.stream_section(benchmark)
    lines = []
    for where, section in draft.sections.items():
        in_recipe = draft.base.section(where, method)
        for name, (kind, default) in section.options.items():
            value = draft.values[where].get(name, "required" if default is REQUIRED else default)
            source = draft.base.file if name in in_recipe else f"default of {section.owner}"
            lines.append(Setting(write_key(where, name), write_value(value), kind.words, source))
    return lines


class _Draft:
    """Settings on their way from a recipe to a run."""

    def __init__(self, base: Recipe, method: str) -> None:
        self.base, self.method = base, method
        options = schema.method_section(base, method)
        self.values: dict[str, dict[str, Any]] = {
            section: deepcopy(base.section(section, method)) for section in ("options", *SECTIONS)
        }
        if method not in base.methods:
            self.values["options"] = schema.default_options(options)
        self.values["optimizer"].setdefault("name", schema.PLAIN_SGD)
        own_stream = is_file_reference(base.benchmark)  # its file runs only if its options matter
        self.sections: dict[str, Section] = {
            "options": options,
            "training": schema.training_section(),
            **{part: schema.named_section(NAMED[part], self.values[part].get("name")) for part in NAMED},
            "stream": Section(base.benchmark, {}) if own_stream else schema.stream_section(base.benchmark),
        }
        self.stated = {section: set(values) for section, values in self.values.items()}
        for section, values in self.values.items():
            for name in list(values):
                self._check(section, name, f"{base.file}: {write_key(section, name)} = {values[name]!r}")

    def apply(self, overrides: Sequence[str]) -> None:
        changes = parse(overrides)
        for change in changes:
            section, _, name = change.key.partition(".")
            if section in NAMED and name == "name" and change.value != self.values[section]["name"]:
                self._switch(section, change.value, f"{change.label}: ")
        if given := [change.key.removeprefix("stream.") for change in changes if change.key.startswith("stream.")]:
            self.sections["stream"] = schema.stream_section(self.base.benchmark, given)
        more = f"(remnant list settings {self.method} --benchmark {self.base.benchmark} shows all.)"
        changes = [located(change, self.sections, more) for change in changes]
        refuse_contradictions(changes, self.sections)
        labels: dict[tuple[str, str], str] = {}
        for _, value, label, section, name, part in changes:
            labels[section, name] = f"{labels.get((section, name), '')} {label}".strip()
            values, kind = self.values[section], self.sections[section].options[name].kind
            values[name] = merged(kind, values.get(name), part, value) if part else value
        for (section, name), label in labels.items():  # last, because a table may need several changes to be whole
            self._check(section, name, label)

    def _switch(self, section: str, name: Any, label: str) -> None:
        """Another network or optimizer starts from its own defaults: the recipe's options describe the old one."""
        self.sections[section] = schema.named_section(NAMED[section], name, label)
        self.values[section], self.stated[section] = {"name": name}, {"name"}
        if section == "network":
            for option, (kind, default) in self.sections["options"].options.items():
                if kind.forms == (("*",),) and default is None:  # a table of layers that the new network does not have
                    self.values["options"].pop(option, None)

    def _check(self, section: str, name: str, label: str) -> None:
        values, option = self.values[section], self.sections[section].options.get(name)
        if name not in values:
            return  # removed with the rest of early stopping
        if option is None:
            raise OptionError(f"{label}: {self.sections[section].owner} has no such setting.")
        kind, default = option
        value = None if kind.optional and values[name] == "none" else values[name]
        values[name] = kind.read(value, f"{label}: {write_key(section, name)}")
        if values[name] is None and name in EARLY_STOPPING and section == "training":
            for each in EARLY_STOPPING:
                values.pop(each, None)
        elif values[name] == default and (values[name] is None or name not in self.stated[section]):
            del values[name]

    def settings(self, protocol: str) -> Settings:
        training = self.values["training"]
        missing = [f"training.{name}" for name in EARLY_STOPPING if name not in training]
        if 0 < len(missing) < len(EARLY_STOPPING):
            given = next(name for name in EARLY_STOPPING if name in training)
            needed = " and ".join(missing)
            raise OptionError(f"training.{given}={training[given]}: early stopping needs {needed} too.")
        for where, section in self.sections.items():
            for name, (kind, default) in section.options.items():
                if default is REQUIRED and name not in self.values[where]:
                    key = write_key(where, name)
                    raise OptionError(
                        f"{section.owner} needs a value for {key}, which has no default and is not in {self.base.file}. "
                        f"Add --set {key}=… ({kind.words})."
                    )
        if self.values["optimizer"] == {"name": schema.PLAIN_SGD}:
            self.values["optimizer"] = {}
        return Settings(self.base.benchmark, self.method, protocol, **self.values)
