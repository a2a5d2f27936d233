"""Which settings there are, what each may be and what it is when nobody says."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, NamedTuple, get_type_hints

from remnant.experiments.kinds import (
    Kind,
    annotated,
    anything,
    choice,
    each_layer,
    like,
    number,
    per_layer,
    threshold,
    whole,
)
from remnant.experiments.recipe_file import Recipe, is_own_stream
from remnant.memory.subspace import RANK_RULES

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

# Options that mean the same in every method. Any other takes the type its recipe shows.
OPTIONS: dict[str, Kind] = {
    "lr": number(0, 10, above=True),
    "samples": whole(1),
    "layer_samples": per_layer(whole(1)),
    "threshold": threshold(),
    "rank_rule": choice(RANK_RULES),
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


def method_settings(recipe: Recipe, method: str) -> dict[str, Known]:
    return {key: Known(OPTIONS.get(key) or like(value)) for key, value in recipe.methods[method].items()}


def network_settings(name: str) -> dict[str, Known]:
    """The options of the network called `name`, which must be one of ours, and its name."""
    from remnant.models import MODELS

    network: Callable[..., Any] = MODELS[name]
    return {"name": Known(choice(list(MODELS))), **_keywords(network, get_type_hints(MODELS[name].__init__))}


def stream_settings(benchmark: str) -> dict[str, Known] | None:
    """The options of a built-in stream; None for a user's own, which knows them itself."""
    from remnant.data import BENCHMARKS

    if is_own_stream(benchmark):
        return None
    build = BENCHMARKS[benchmark].build
    settings = _keywords(build, get_type_hints(build))
    for (name, option), count in SEEDED.items():
        if name == benchmark:
            kind, default = settings[option]
            settings[option] = Known(kind.or_word("seed", f"the seed mod {count}"), default)
    return settings


def own_option() -> Known:
    return Known(anything())


def _keywords(function: Callable[..., Any], hints: dict[str, Any]) -> dict[str, Known]:
    """The keyword-only arguments, which is how streams and networks take their options."""
    options = [o for o in signature(function).parameters.values() if o.kind is Parameter.KEYWORD_ONLY]
    return {
        option.name: Known(
            annotated(hints.get(option.name, Any), BOUNDS.get(option.name)),
            list(option.default) if isinstance(option.default, tuple) else option.default,
        )
        for option in options
    }
