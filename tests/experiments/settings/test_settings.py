"""A run's settings: known by their digest, and the same again from what was saved."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remnant.experiments.settings.resolve import Settings, SettingsError, resolve
from remnant.memory import parse_threshold


def test_a_default_spelled_out_is_the_same_run() -> None:
    plain = resolve("split-cifar100", "gpm")
    for override in ("network.width=64", "network.bias=false", "lr=0.010", "stream.tasks=10", "stream.sizes=none"):
        assert resolve("split-cifar100", "gpm", [override]).digest == plain.digest, override


def test_digests_on_record_do_not_move() -> None:
    """Results are filed by digest: a recipe's meaning may not change without notice."""
    assert resolve("pmnist", "gpm").digest == "7261a612"
    assert resolve("split-cifar100", "gpm").digest == "e7a3a1df"


values = st.one_of(st.integers(-100, 100), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.booleans())
tables = st.dictionaries(st.text(min_size=1), st.one_of(values, st.lists(values), st.dictionaries(st.text(), values)))
patterns = st.text(st.sampled_from("abh.01*?"), min_size=1, max_size=6)
layers = st.dictionaries(patterns, st.sampled_from([0.9, 0.95, 0.99]), min_size=1)
settings_of_any_kind = st.builds(
    Settings,
    st.text(),
    st.text(),
    st.sampled_from(["paper", "sane"]),
    *[tables] * 3,
    st.builds(lambda rest, chosen: {**rest, "threshold": {"layers": chosen}}, tables, layers),
)


@given(settings_of_any_kind, st.randoms(use_true_random=False))
def test_the_digest_and_the_thresholds_do_not_depend_on_the_order_of_keys(settings: Settings, random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = list(value.items())
        random.shuffle(items)
        return {key: shuffled(item) for key, item in items}

    other = Settings.from_dict(shuffled(settings.as_dict()))
    assert other == settings
    assert other.digest == settings.digest
    # The memory goes by the first pattern that matches, so their order must be the same too.
    assert list(other.options["threshold"]["layers"]) == list(settings.options["threshold"]["layers"])


@given(settings_of_any_kind)
def test_settings_come_back_from_json(settings: Settings) -> None:
    for sort in (False, True):
        back = Settings.from_dict(json.loads(json.dumps(settings.as_dict(), sort_keys=sort)))
        assert back == settings
        assert back.digest == settings.digest
    assert len(settings.digest) == 8
    assert int(settings.digest, 16) >= 0


def test_sorted_json_keeps_the_first_layer_s_threshold() -> None:
    """'*' sorts before 'hidden.0', and the memory takes the first pattern that matches."""
    settings = resolve("pmnist", "gpm")
    back = Settings.from_dict(json.loads(json.dumps(settings.as_dict(), sort_keys=True)))
    threshold = parse_threshold(back.options["threshold"]).for_layers(["hidden.0", "hidden.1", "head"])
    assert [threshold(layer, 0) for layer in ("hidden.0", "hidden.1", "head")] == [0.95, 0.99, 0.99]


def test_what_as_dict_gives_is_the_receiver_s_own() -> None:
    settings = resolve("pmnist", "gpm")
    settings.as_dict()["options"]["threshold"]["layers"]["*"] = 0.1
    settings.stream_options(0)["tasks"] = 1
    assert settings == resolve("pmnist", "gpm")


def test_settings_of_another_make_are_refused() -> None:
    content = resolve("pmnist", "gpm").as_dict()
    del content["method"]
    with pytest.raises(SettingsError, match="method"):
        Settings.from_dict(content)
