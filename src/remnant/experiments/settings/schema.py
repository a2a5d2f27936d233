"""Which settings there are, what each may be and what it is when nobody says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, NamedTuple, get_type_hints

from . import catalogue
from .catalogue import Option
from .recipe import Recipe, is_own_stream
from .types import Kind, annotated, anything, choice, each_layer, like, number, per_layer, threshold, whole

UNSET: Any = object()


class Known(NamedTuple):
    kind: Kind
    default: Any = UNSET


TRAINING = {
    "epochs": Known(whole(1)),
    "batch": Known(whole(1)),
    "evaluation_batch": Known(whole(1)),
    # Early stopping: all three, or none of them.
    "patience": Known(whole(1).or_none(), None),
    "factor": Known(number(1, 1000, above=True).or_none(), None),
    "lr_min": Known(number(0, 10, above=True).or_none(), None),
}
EARLY_STOPPING = ("patience", "factor", "lr_min")

# Options of our methods. Any other, and one of these names that a recipe means otherwise, takes the type its recipe shows.
OPTIONS: dict[str, Kind] = {
    "lr": number(0, 10, above=True),
    "samples": whole(1),
    "layer_samples": per_layer(whole(1)),
    "threshold": threshold(),
    "rank_rule": choice(catalogue.rank_rules()),
    "memory": whole(1),
    "memory_batch": whole(1),
    "memory_strength": number(0, 100),
    "ridge": number(0, 1000),
    "strength": number(0, 1e9),
    "fisher_batch": whole(1),
    "alpha_start": each_layer(number(0, 1e9, above=True)),
    "alpha_decay": each_layer(number(0, 1, above=True)),
    "s_max": number(1, 1e6),
    "sparsity": number(0, 1e3),
}
PER_LAYER = {"layer_samples", "alpha_start", "alpha_decay"}  # tables by pattern of layer names

# Bounds of the numbers in the signatures of streams and networks, which only give types.
BOUNDS: dict[str, Kind] = {
    "tasks": whole(1, 1000),
    "classes": whole(2, 1000),
    "sizes": whole(2, 1000),
    "valid": number(0, 1, below=True),
    "degrees": number(0, 360),
    "order": whole(0, 4),
    "width": whole(1, 10_000),
    "hidden": whole(1),
    "stem_stride": whole(1, 8),
    "dropout": number(0, 1, below=True),
}

# Options that may follow the seed, with the number of values they go through. A seed is no setting, so all seeds of a run
# share their settings and lie together.
SEEDED = {("cifar100-superclass", "order"): 5}


def methods() -> set[str]:
    """The names of all methods. Once they are loaded they are asked themselves: one may have been added."""
    loaded = sys.modules.get("remnant.methods")
    return {entry.name for entry in catalogue.methods()} if loaded is None else set(loaded.METHODS)


def method_settings(recipe: Recipe, method: str) -> dict[str, Known]:
    return {key: Known(_kind(key, value)) for key, value in recipe.methods[method].items()}


def _kind(key: str, value: Any) -> Kind:
    kind = OPTIONS.get(key)
    return kind if kind is not None and (key == "lr" or kind.is_form(value)) else like(value)


def networks() -> dict[str, dict[str, Option]]:
    """The options of every network. Once the networks are loaded they are asked themselves: one may have been added."""
    loaded = sys.modules.get("remnant.models.registry")
    return (
        catalogue.model_options()
        if loaded is None
        else {name: options_of(m.__init__) for name, m in loaded.MODELS.items()}
    )


def network_settings(name: str) -> dict[str, Known]:
    """The options of the network called `name`, and its name."""
    return {"name": Known(choice(list(networks()))), **_settings(networks()[name])}


def stream_settings(benchmark: str) -> dict[str, Known] | None:
    """The options of a built-in stream; None for a user's own, which knows them itself."""
    if is_own_stream(benchmark):
        return None
    settings = _settings(catalogue.stream_options()[benchmark])
    for (name, option), count in SEEDED.items():
        if name == benchmark:
            kind, default = settings[option]
            settings[option] = Known(kind.or_word("seed", f"the seed mod {count}"), default)
    return settings


def own_option() -> Known:
    return Known(anything())


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword-only arguments of a function that is loaded."""
    hints = get_type_hints(function)
    options = [o for o in signature(function).parameters.values() if o.kind is Parameter.KEYWORD_ONLY]
    return {option.name: Option(hints.get(option.name, Any), option.default) for option in options}


def _settings(options: dict[str, Option]) -> dict[str, Known]:
    return {
        name: Known(annotated(hint, BOUNDS.get(name)), list(default) if isinstance(default, tuple) else default)
        for name, (hint, default) in options.items()
    }
