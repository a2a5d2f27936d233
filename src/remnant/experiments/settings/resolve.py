"""The settings of a run: a recipe with overrides."""

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from remnant.data import BENCHMARKS, FIRST
from remnant.methods import METHODS, OPTIMIZERS, Method
from remnant.models import MODELS, Network
from remnant.options import ANYTHING, REQUIRED, Kind, Option, OptionError, options_of, or_none
from remnant.registry import IN_FILE, Registry, UnknownNameError
from remnant.training import Schedule

from .overrides import EARLY_STOPPING, Section, located, merged, parse, refuse_contradictions
from .recipe import SECTIONS, Recipe, recipe, section_of

NAMED: dict[str, Registry[Any]] = {"network": MODELS, "optimizer": OPTIMIZERS}  # sections with the option `name`
PLAIN_SGD = "sgd"


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, except its seed and the machine.

    The sections hold the recipe's values and those that were changed. All other options keep their defaults and are left
    out, so that a network or stream can gain options without giving old runs a new digest.
    """

    benchmark: str
    method: str
    protocol: str  # "paper" or "sane"
    stream: dict[str, Any]
    network: dict[str, Any]  # its `name` and options
    training: dict[str, Any]  # the fields of `remnant.training.Schedule`, except the learning rate
    options: dict[str, Any]  # the method's options, always with `lr`
    optimizer: dict[str, Any] = field(default_factory=dict)  # its `name` and options; empty for plain SGD

    def __post_init__(self) -> None:
        # The first layer pattern that matches counts, and JSON with sorted keys loses their order.
        object.__setattr__(self, "options", _most_special_first(self.options))

    def as_dict(self) -> dict[str, Any]:
        """Returns the settings as tables for JSON. An empty `optimizer` is left out."""
        content = deepcopy(vars(self))
        if not self.optimizer:
            del content["optimizer"]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Settings":
        """Restores settings from the tables that `as_dict` gave, even after a round trip through JSON."""
        wrong = {each.name for each in fields(cls)} ^ {"optimizer", *content}
        if wrong:
            raise OptionError(f"These are not the settings of a run. Missing or unknown: {', '.join(sorted(wrong))}.")
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
    """One row of `remnant list settings`, with the value that the setting has now. `source` says where it is from."""

    key: str
    value: str
    allowed: str
    source: str


def resolve(
    benchmark: str | Callable[..., Any],
    method: str | type[Method],
    overrides: Sequence[str] = (),
    protocol: str = "paper",
    network: str | type[Network] | None = None,
) -> Settings:
    """Returns the settings of a method on a benchmark: its recipe with your changes.

    Args:
        benchmark: A benchmark's name, `path/to/file.py:make`, or the stream function itself.
        method: A method's name, `path/to/file.py:MyMethod`, or the class itself.
        overrides: Changes as `--set` takes them: `lr=0.1`, `training.epochs=1`, `optimizer=adamw`.
        protocol: "paper" as the published scripts do it, or "sane" with their known faults corrected.
        network: A network to use instead of the recipe's: its name, `path/to/file.py:Net`, or the class itself.

    Raises:
        OptionError: If a name, setting or value is not known or not allowed, or if overrides contradict each other.

    Example:
        >>> resolve("permuted-digits", "gpm", ["lr=0.1"]).options["lr"]
        0.1
    """
    stream = benchmark if isinstance(benchmark, str) else BENCHMARKS.name_of(benchmark)
    draft = _Draft(recipe(stream, protocol), method if isinstance(method, str) else METHODS.name_of(method))
    if network is not None:
        overrides = [f"network.name={MODELS.name_of(network)}", *overrides]
    if overrides:
        draft.apply(overrides)
    return draft.settings(protocol)


def describe(benchmark: str | None, method: str) -> list[Setting]:
    """Returns every setting that can be changed, with its value. Without a benchmark, describes a user's own stream."""
    draft = _Draft(recipe(benchmark or "your_file.py:stream"), method)
    if benchmark:
        draft.sections["stream"] = _stream_section(benchmark)
    in_recipe, lines = draft.base.values(method), []
    for section, (owner, options) in draft.sections.items():
        for key, (kind, default) in options.items():
            value = draft.values.get(key, "required" if default is REQUIRED else default)
            source = draft.base.file if key in in_recipe else f"default of {owner}"
            names = ", ".join(NAMED[section]) if key == f"{section}.name" else ""
            lines.append(Setting(key, _written(value), f"{names} or {kind.words}" if names else kind.words, source))
    return lines


def _written(value: Any) -> str:
    """Returns the value as `--set` takes it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_written(item)}' for key, item in value.items())}}}"
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


class _Draft:
    """Settings on their way from a recipe to a run, by the keys that `--set` takes: `lr`, `training.epochs`."""

    def __init__(self, base: Recipe, method: str) -> None:
        self.base, self.method = base, method
        self.values = {"optimizer.name": PLAIN_SGD, **base.values(method)}
        options = _method_options(base, method)
        if method not in base.methods:
            self.values |= {name: default for name, (kind, default) in options.items() if kind.accepts(default)}
        schedule = {f"training.{name}": option for name, option in options_of(Schedule).items() if name != "lr"}
        schedule |= {key: Option(or_none(schedule[key].kind), None) for key in EARLY_STOPPING}  # off unless all is set
        own_stream = IN_FILE in base.benchmark  # its file runs only if its options matter
        self.sections = {
            "options": Section(method, options),
            "training": Section("training", schedule),
            **{name: _named_section(name, self.values.get(f"{name}.name")) for name in NAMED},
            "stream": Section(base.benchmark, {}) if own_stream else _stream_section(base.benchmark),
        }
        self.stated = set(self.values)  # these are kept even if they equal the default
        for key, value in list(self.values.items()):
            self._check(key, f"{base.file}: {key} = {value!r}")

    def apply(self, overrides: Sequence[str]) -> None:
        changes = parse(overrides)
        for change in changes:
            section = section_of(change.key)
            if section in NAMED and change.key == f"{section}.name" and change.value != self.values[change.key]:
                self._switch(section, change.value, f"{change.label}: ")
        if given := [change.key for change in changes if change.key.startswith("stream.")]:
            self.sections["stream"] = _stream_section(self.base.benchmark, given)
        more = f"(remnant list settings {self.method} --benchmark {self.base.benchmark} shows all.)"
        changes = [located(change, self.sections, more) for change in changes]
        refuse_contradictions(changes, self.sections)
        labels: dict[str, str] = {}
        for key, value, label, part in changes:
            labels[key] = f"{labels.get(key, '')} {label}".strip()
            kind = self.sections[section_of(key)].options[key].kind
            self.values[key] = merged(kind, self.values.get(key), part, value) if part else value
        for key, label in labels.items():  # last, because a table may need several changes to be whole
            self._check(key, label)

    def _switch(self, section: str, name: Any, label: str) -> None:
        """Another network or optimizer starts from its own defaults: the recipe's options describe the old one."""
        self.sections[section] = _named_section(section, name, label)
        self.values = {key: value for key, value in self.values.items() if section_of(key) != section}
        self.values[f"{section}.name"] = name
        if section == "network":
            for key, (kind, default) in self.sections["options"].options.items():
                value = self.values.get(key)
                per_layer = kind.forms == (("*",),) and default is None
                if per_layer or (isinstance(value, dict) and "layers" in value):  # the new network has other layers
                    self.values.pop(key, None)
        self.stated = set(self.values)

    def _check(self, key: str, label: str) -> None:
        if key not in self.values:
            return  # removed with the rest of early stopping
        section = self.sections[section_of(key)]
        if key not in section.options:
            raise OptionError(f"{label}: {section.owner} has no such setting.")
        kind, default = section.options[key]
        given = None if kind.optional and self.values[key] == "none" else self.values[key]
        self.values[key] = value = kind.read(given, f"{label}: {key}")
        if value is None and key in EARLY_STOPPING:
            for each in EARLY_STOPPING:
                self.values.pop(each, None)
        elif value == default and (value is None or key not in self.stated):
            del self.values[key]

    def settings(self, protocol: str) -> Settings:
        missing = [key for key in EARLY_STOPPING if key not in self.values]
        if 0 < len(missing) < len(EARLY_STOPPING):
            raise OptionError(f"Early stopping needs {' and '.join(missing)} too. Set all of them, or none.")
        for section in self.sections.values():
            for key, (kind, default) in section.options.items():
                if default is REQUIRED and key not in self.values:
                    raise OptionError(
                        f"{section.owner} needs a value for {key}, which has no default and is not in {self.base.file}. "
                        f"Add --set {key}=… ({kind.words})."
                    )
        tables: dict[str, dict[str, Any]] = {name: {} for name in ("options", *SECTIONS)}
        for key, value in self.values.items():
            tables[section_of(key)][key.rpartition(".")[2]] = value
        if tables["optimizer"] == {"name": PLAIN_SGD}:
            tables["optimizer"] = {}
        return Settings(self.base.benchmark, self.method, protocol, **tables)


def _method_options(base: Recipe, method: str) -> dict[str, Option]:
    """Returns the options of a method; raises an OptionError if the method makes no sense on the benchmark."""
    found = _find(METHODS, method, base=Method)
    reason = base.without.get(method, "")
    # A recipe with one method that needs the task has a head per task, and suits all such methods.
    if found.needs_task and not any(METHODS[other].needs_task for other in base.methods if other in METHODS):
        reason = f"{method} needs the task at test time, so it runs only on streams with a head per task."
    if reason:
        raise OptionError(
            f"{method} cannot run on {base.benchmark}. {reason} `remnant list methods` shows all methods."
        )
    options = options_of(found)
    if "lr" not in options:
        raise OptionError(
            f"{method} has no option lr, which every method takes. Add `*, lr: float = 0.01` to its constructor, or "
            "`**options` that it passes to super().__init__."
        )
    return options


def _named_section(section: str, name: Any, label: str = "") -> Section:
    """Returns the name and the options of a network or optimizer."""
    options = options_of(_find(NAMED[section], name, label, Network if section == "network" else object))
    allowed = Kind("path/to/file.py:Name", lambda value: isinstance(value, str))
    name_option = Option(allowed, PLAIN_SGD if section == "optimizer" else REQUIRED)
    return Section(str(name), {f"{section}.{key}": option for key, option in {"name": name_option, **options}.items()})


def _stream_section(benchmark: str, given: Iterable[str] = ()) -> Section:
    """Returns the options of a stream, with those `given` if its function takes any."""
    stream = _find(BENCHMARKS, benchmark)
    parameters = inspect.signature(stream).parameters.values() if callable(stream) else ()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    others = {key: Option(ANYTHING, None) for key in given if takes_any}
    options = {"first": FIRST} | (options_of(stream) if callable(stream) else {})
    return Section(benchmark, others | {f"stream.{name}": option for name, option in options.items()})


def _find(registry: Registry[Any], name: Any, label: str = "", base: type = object) -> Any:
    """Returns the thing called `name`; raises an OptionError that begins with `label` if it is missing or not a `base`."""
    try:
        found = registry[str(name)]
    except UnknownNameError as error:
        raise OptionError(f"{label}{error}") from error
    if base is not object and not (isinstance(found, type) and issubclass(found, base)):
        own, room = str(name).rpartition(":")[2], base.__module__.rpartition(".")[0]
        hint = f"Write class {own}({base.__name__}), with `from {room} import {base.__name__}`."
        raise OptionError(f"{label}{name} is not a subclass of remnant's {base.__name__}. {hint}")
    return found
