"""A run's settings: known by their digest, and the same again from what was saved."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remnant.experiments.settings import Settings, recipe, resolve
from remnant.memory import parse_threshold
from remnant.options import OptionError


def test_a_default_spelled_out_is_the_same_run() -> None:
    plain = resolve("split-cifar100", "gpm")
    for override in ("network.width=64", "network.bias=false", "lr=0.010", "stream.tasks=10", "stream.sizes=none"):
        assert resolve("split-cifar100", "gpm", [override]).digest == plain.digest, override


RECORDED = {
    ("pmnist", "gpm"): "7261a612",
    ("pmnist", "gpm", "threshold.start=0.95"): "7ea4da96",
    ("pmnist", "multitask"): "69a08787",
    ("split-cifar100", "gpm"): "e7a3a1df",
    ("split-cifar100", "owm", "alpha_start=3"): "280ef8bc",
    ("split-cifar100", "hat", "training.patience=none"): "2191300c",
    ("five-datasets", "gpm", "stream.fourth=fashion-mnist"): "4b074a70",
    ("cifar100-superclass", "gpm", "stream.layout=planar"): "9d4352ed",
    ("permuted-digits", "ewc", "network.name=lenet", "network.width=3"): "07866352",
}


@pytest.mark.parametrize("run", RECORDED, ids=" ".join)
def test_digests_on_record_do_not_move(run: tuple[str, ...]) -> None:
    """Results are filed by digest, so the meaning of a recipe must not change unnoticed."""
    benchmark, method, *overrides = run
    assert resolve(benchmark, method, overrides).digest == RECORDED[run]


def test_stored_results_keep_their_digests() -> None:
    stored = list((Path(__file__).parents[3] / "results").glob("*/*/*/seed*/settings.json"))
    assert stored
    for file in stored:
        assert Settings.from_dict(json.loads(file.read_text())["settings"]).digest == file.parent.parent.name, file


@pytest.mark.parametrize("overrides", [["optimizer=sgd"], ["optimizer.name=sgd"], ["optimizer.momentum=0"]])
def test_plain_sgd_is_no_entry_of_the_settings(overrides: list[str]) -> None:
    settings = resolve("pmnist", "gpm", overrides)
    assert settings.optimizer == {}
    assert "optimizer" not in settings.as_dict()
    assert settings.digest == RECORDED["pmnist", "gpm"]


@pytest.mark.parametrize(
    ("overrides", "optimizer"),
    [
        (["optimizer=adamw"], {"name": "adamw"}),
        (["optimizer=adamw", "optimizer.weight_decay=0.1"], {"name": "adamw", "weight_decay": 0.1}),
        (["optimizer.weight_decay=0.01", "optimizer=adamw"], {"name": "adamw"}),  # its default
        (["optimizer.momentum=0.9"], {"name": "sgd", "momentum": 0.9}),
    ],
)
def test_another_optimizer_is_another_run(overrides: list[str], optimizer: dict[str, Any]) -> None:
    settings = resolve("pmnist", "gpm", overrides)
    assert settings.optimizer == optimizer
    assert settings.digest != RECORDED["pmnist", "gpm"]
    assert Settings.from_dict(settings.as_dict()) == settings


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["optimizer=adm"], r"--set optimizer=adm: No optimizer called 'adm'. Did you mean 'adam'\?"),
        (["optimizer.momentum=2"], "optimizer.momentum takes a number from 0 to under 1"),
        (["optimizer=adamw", "optimizer.momentum=0.9"], "no such setting of adamw"),
    ],
)
def test_options_of_an_optimizer_are_those_of_its_signature(overrides: list[str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        resolve("pmnist", "gpm", overrides)


def test_a_recipe_may_name_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    base = recipe("pmnist", "paper")
    monkeypatch.setitem(base.optimizer, "name", "adam")
    monkeypatch.setitem(base.optimizer, "eps", 0.1)
    monkeypatch.setitem(base.differing, "ewc", {"optimizer": {"name": "rmsprop"}})
    assert resolve("pmnist", "gpm").optimizer == {"name": "adam", "eps": 0.1}
    assert resolve("pmnist", "ewc").optimizer == {"name": "rmsprop"}
    assert resolve("pmnist", "gpm", ["optimizer=sgd"]).optimizer == {}


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
    threshold = parse_threshold(back.options["threshold"], ["hidden.0", "hidden.1", "head"]).of
    assert [threshold(layer, 0) for layer in ("hidden.0", "hidden.1", "head")] == [0.95, 0.99, 0.99]


def test_what_as_dict_gives_is_the_receiver_s_own() -> None:
    settings = resolve("pmnist", "gpm")
    settings.as_dict()["options"]["threshold"]["layers"]["*"] = 0.1
    assert settings == resolve("pmnist", "gpm")


def test_settings_of_another_make_are_refused() -> None:
    content = resolve("pmnist", "gpm").as_dict()
    del content["method"]
    with pytest.raises(OptionError, match="method"):
        Settings.from_dict(content)
