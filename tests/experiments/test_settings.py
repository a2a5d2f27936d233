"""Recipes hold the paper's numbers; overrides change what they say and nothing else, or are refused in plain words."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remnant.data import BENCHMARKS
from remnant.experiments import catalogue
from remnant.experiments.settings import (
    Settings,
    SettingsError,
    describe,
    recipe,
    recipe_names,
    resolve,
)
from remnant.memory.threshold import resolve as thresholds
from remnant.methods import METHODS
from remnant.models import build

EVERYTHING = [
    (benchmark, method, protocol)
    for benchmark in recipe_names()
    for method in recipe(benchmark).methods
    for protocol in ("paper", "sane")
]

# Typed from REFERENCE.md, Sec. 1, and the paper's appendix: lr, samples, epochs, batch, (patience, factor, lr_min).
PROTOCOL = {
    "pmnist": (0.01, 300, 5, 10, None),
    "split-cifar100": (0.01, 125, 200, 64, (6, 2, 1e-5)),
    "cifar100-superclass": (0.01, 125, 50, 64, (6, 2, 1e-5)),
    "split-miniimagenet": (0.1, 100, 10, 10, None),
    "split-tinyimagenet": (0.1, 225, 10, 10, None),
    "five-datasets": (0.1, 100, 100, 64, (5, 3, 1e-3)),
}
THRESHOLDS = {
    "pmnist": {"layers": {"hidden.0": 0.95, "*": 0.99}},
    "split-cifar100": {"start": 0.97, "step": 0.003},
    "cifar100-superclass": {"start": 0.98, "step": 0.001},
    "split-miniimagenet": {"start": 0.985, "step": 0.0003},
    "split-tinyimagenet": {"start": 0.995, "step": 0.0002},
    "five-datasets": {"value": 0.965},
}
MULTITASK_LR = {"pmnist": 0.1, "split-cifar100": 0.05, "split-miniimagenet": 0.1, "five-datasets": 0.1}

# Typed from the paper's tables: acc, acc_sd, bwt, bwt_sd, seconds.
PAPER = {
    ("pmnist", "ogd"): (82.56, 0.66, -0.14, 0.01, 1658),
    ("pmnist", "owm"): (90.71, 0.11, -0.01, 0.00, 396),
    ("pmnist", "gem"): (83.38, 0.56, -0.15, 0.01, 1639),
    ("pmnist", "agem"): (83.56, 0.16, -0.14, 0.00, 445),
    ("pmnist", "er"): (87.24, 0.53, -0.11, 0.01, 259),
    ("pmnist", "ewc"): (89.97, 0.57, -0.04, 0.01, 645),
    ("pmnist", "gpm"): (93.91, 0.16, -0.03, 0.00, 245),
    ("pmnist", "multitask"): (96.70, 0.02, None, None, None),
    ("split-cifar100", "owm"): (50.94, 0.60, -0.30, 0.01, 1856),
    ("split-cifar100", "ewc"): (68.80, 0.88, -0.02, 0.01, 1352),
    ("split-cifar100", "hat"): (72.06, 0.50, 0.00, 0.00, 1248),
    ("split-cifar100", "agem"): (63.98, 1.22, -0.15, 0.02, 2678),
    ("split-cifar100", "er"): (71.73, 0.63, -0.06, 0.01, 1147),
    ("split-cifar100", "gpm"): (72.48, 0.40, 0.00, 0.00, 770),
    ("split-cifar100", "multitask"): (79.58, 0.54, None, None, None),
    ("split-miniimagenet", "ewc"): (52.01, 2.53, -0.12, 0.03, 4138),
    ("split-miniimagenet", "hat"): (59.78, 0.57, -0.03, 0.00, 3077),
    ("split-miniimagenet", "agem"): (57.24, 0.72, -0.12, 0.01, 6069),
    ("split-miniimagenet", "er"): (58.94, 0.85, -0.07, 0.01, 2775),
    ("split-miniimagenet", "gpm"): (60.41, 0.61, 0.00, 0.00, 3387),
    ("split-miniimagenet", "multitask"): (69.46, 0.62, None, None, None),
    ("five-datasets", "ewc"): (88.64, 0.26, -0.04, 0.01, 7613),
    ("five-datasets", "hat"): (91.32, 0.18, -0.01, 0.00, 7246),
    ("five-datasets", "agem"): (84.04, 0.33, -0.12, 0.01, 12077),
    ("five-datasets", "er"): (88.31, 0.22, -0.04, 0.00, 7015),
    ("five-datasets", "gpm"): (91.22, 0.20, -0.01, 0.00, 5008),
    ("five-datasets", "multitask"): (91.54, 0.28, None, None, None),
    ("cifar100-superclass", "gpm"): (57.72, 0.37, -0.01, None, None),
    ("mnist-incremental", "ewc"): (10.00, None, -1.00, None, None),
    ("mnist-incremental", "dgr"): (59.60, None, -0.43, None, None),
    ("mnist-incremental", "dgdmn"): (81.80, None, -0.15, None, None),
    ("mnist-incremental", "gpm"): (70.67, None, -0.26, None, None),
}
SUPERCLASS = {  # acc, capacity
    "single-task": (61.00, 2000),
    "pgn": (50.76, 271),
    "den": (51.10, 191),
    "rcl": (51.99, 184),
    "apd": (56.81, 130),
    "gpm": (57.72, 100),
}


# --- recipes ------------------------------------------------------------------------------------------------------


def test_every_benchmark_has_a_recipe_and_no_recipe_lacks_its_benchmark() -> None:
    assert recipe_names() == sorted(BENCHMARKS)


@pytest.mark.parametrize(("benchmark", "method", "protocol"), EVERYTHING)
def test_every_recipe_resolves_to_a_network_one_can_build(benchmark: str, method: str, protocol: str) -> None:
    settings = resolve(benchmark, method, protocol=protocol)
    options = dict(settings.network)
    # Small, but every option is really passed.
    small = {} if options["name"] == "mlp" else {"width": 4}
    build(options.pop("name"), input_shape=(3, 84, 84), classes=2, **{**options, **small})
    assert settings.stream_options(7).keys() <= BENCHMARKS[benchmark].options.keys()
    assert {"epochs", "batch", "evaluation_batch"} <= settings.training.keys()
    assert settings.options["lr"] > 0


@pytest.mark.parametrize("benchmark", PROTOCOL)
def test_constants_are_those_of_the_paper_and_its_code(benchmark: str) -> None:
    lr, samples, epochs, batch, stopping = PROTOCOL[benchmark]
    settings = resolve(benchmark, "gpm")
    training = settings.training
    assert (settings.options["lr"], settings.options["samples"]) == (lr, samples)
    assert (training["epochs"], training["batch"]) == (epochs, batch)
    found = tuple(training.get(name) for name in ("patience", "factor", "lr_min"))
    assert found == (stopping or (None, None, None))
    assert settings.options["threshold"] == THRESHOLDS[benchmark]
    for method in ("finetune", "single-task"):
        assert resolve(benchmark, method).options == {"lr": lr}


@pytest.mark.parametrize("benchmark", MULTITASK_LR)
def test_multitask_learns_at_its_own_rate(benchmark: str) -> None:
    assert resolve(benchmark, "multitask").options == {"lr": MULTITASK_LR[benchmark]}


def test_the_paper_s_numbers_beside_the_recipes() -> None:
    for (benchmark, method), numbers in PAPER.items():
        found = recipe(benchmark).paper[method]
        assert (found.acc, found.acc_sd, found.bwt, found.bwt_sd, found.seconds) == numbers, (benchmark, method)
    found = {method: (result.acc, result.capacity) for method, result in recipe("cifar100-superclass").paper.items()}
    assert found == SUPERCLASS
    typed = {*PAPER, *(("cifar100-superclass", method) for method in SUPERCLASS)}
    assert {(b, m) for b in recipe_names() for m in recipe(b).paper} == typed


@pytest.mark.parametrize("benchmark", [b for b in recipe_names() if "norm" in recipe(b).network])
def test_tables_are_made_with_batch_statistics_and_the_authors_rank(benchmark: str) -> None:
    paper, sane = resolve(benchmark, "gpm"), resolve(benchmark, "gpm", protocol="sane")
    assert (paper.network["norm"], paper.options["rank_rule"]) == ("batch", "authors")
    assert paper.training["evaluation_batch"] == 64  # the accuracy depends on it
    assert (sane.network["norm"], sane.options["rank_rule"]) == ("running", "paper")
    assert sane.options["threshold"] == paper.options["threshold"]


def test_superclass_pixels_are_scrambled_for_the_table_only() -> None:
    assert resolve("cifar100-superclass", "gpm").stream["layout"] == "as-published"
    assert resolve("cifar100-superclass", "gpm", protocol="sane").stream["layout"] == "planar"


def test_seed_k_learns_the_superclasses_in_order_k() -> None:
    settings = resolve("cifar100-superclass", "gpm")
    assert [settings.stream_options(seed)["order"] for seed in (0, 1, 4, 5, 12)] == [0, 1, 4, 0, 2]
    fixed = resolve("cifar100-superclass", "gpm", ["stream.order=3"])
    assert [fixed.stream_options(seed)["order"] for seed in (0, 1)] == [3, 3]


# --- overrides ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "section", "name", "value"),
    [
        ("lr=0.1", "options", "lr", 0.1),
        ("lr=1", "options", "lr", 1.0),
        ("lr=.5", "options", "lr", 0.5),
        ("lr = 1e-3", "options", "lr", 0.001),
        ("samples=100", "options", "samples", 100),
        ("rank_rule=paper", "options", "rank_rule", "paper"),
        ('rank_rule="paper"', "options", "rank_rule", "paper"),
        ("threshold=0.9", "options", "threshold", {"value": 0.9}),
        ("threshold.value=0.9", "options", "threshold", {"value": 0.9}),
        ("threshold.start=0.95", "options", "threshold", {"start": 0.95, "step": 0.003}),
        ("threshold.step=0", "options", "threshold", {"start": 0.97, "step": 0.0}),
        ("threshold={start=0.9}", "options", "threshold", {"start": 0.9, "step": 0.0}),
        ('threshold={layers={"*"=0.9}}', "options", "threshold", {"layers": {"*": 0.9}}),
        ("threshold.layers.*=0.9", "options", "threshold", {"layers": {"*": 0.9}}),
        ("training.epochs=1", "training", "epochs", 1),
        ("training.factor=3", "training", "factor", 3.0),
        ("network.width=10", "network", "width", 10),
        ("network.dropout=[0, 0.25]", "network", "dropout", [0.0, 0.25]),
        ("network.norm=running", "network", "norm", "running"),
        ("network.bias=true", "network", "bias", True),
        ("stream.tasks=5", "stream", "tasks", 5),
        ("stream.sizes=[50, 20, 30]", "stream", "sizes", [50, 20, 30]),
        ("stream.class_order=shuffled", "stream", "class_order", "shuffled"),
    ],
)
def test_an_override_changes_its_setting_and_no_other(override: str, section: str, name: str, value: object) -> None:
    plain, changed = resolve("split-cifar100", "gpm").as_dict(), resolve("split-cifar100", "gpm", [override]).as_dict()
    assert changed[section][name] == value
    assert type(changed[section][name]) is type(value)
    changed[section].pop(name)
    plain[section].pop(name, None)
    assert changed == plain


def test_the_parts_of_a_threshold_may_come_in_any_order() -> None:
    parts = ["threshold.step=0.001", "threshold.start=0.9"]
    whole = {"start": 0.9, "step": 0.001}
    for overrides in (parts, parts[::-1]):
        assert resolve("five-datasets", "gpm", overrides).options["threshold"] == whole


def test_one_layer_s_threshold_leaves_the_others() -> None:
    found = resolve("pmnist", "gpm", ["threshold.layers.hidden.1=0.8"]).options["threshold"]
    assert found == {"layers": {"hidden.0": 0.95, "hidden.1": 0.8, "*": 0.99}}


def test_the_last_override_of_a_key_counts() -> None:
    assert resolve("pmnist", "gpm", ["lr=0.1", "lr=0.2"]).options["lr"] == 0.2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("threshold.start=0.9", "threshold.value=.8"),
        ("threshold=.8", "threshold.step=0.01"),
        ("threshold=.8", "threshold.layers.conv1=0.9"),
        ("threshold={start=0.9}", "threshold.layers.*=0.9"),
        ("training.patience=none", "training.factor=3"),
    ],
)
def test_overrides_that_contradict_each_other_are_refused_in_either_order(one: str, other: str) -> None:
    for overrides in ([one, other], [other, one]):
        with pytest.raises(SettingsError) as error:
            resolve("split-cifar100", "gpm", ["lr=0.1", *overrides])
        assert str(error.value).startswith(f"--set {overrides[0]} --set {overrides[1]}: ")
        assert str(error.value).endswith(". Give one of them.")


def test_a_whole_table_may_come_before_its_parts_only() -> None:
    whole, part = "threshold={start=0.9}", "threshold.step=0.01"
    assert resolve("pmnist", "gpm", [whole, part]).options["threshold"] == {"start": 0.9, "step": 0.01}
    with pytest.raises(SettingsError, match="the second says all of threshold and would undo the first"):
        resolve("pmnist", "gpm", [part, whole])
    whole, part = "layer_samples={conv1=5}", "layer_samples.conv2=6"
    assert resolve("split-cifar100", "gpm", [whole, part]).options["layer_samples"] == {"conv1": 5, "conv2": 6}
    with pytest.raises(SettingsError, match="the second says all of layer_samples"):
        resolve("split-cifar100", "gpm", [part, whole])


def test_what_was_taken_back_contradicts_nothing() -> None:
    overrides = ["training.patience=none", "training.factor=3", "training.patience=4"]
    assert resolve("split-cifar100", "gpm", overrides).training["patience"] == 4


@pytest.mark.parametrize("names", [["patience"], ["patience", "factor"], ["lr_min", "factor", "patience"]])
def test_none_turns_early_stopping_off(names: list[str]) -> None:
    training = resolve("split-cifar100", "gpm", [f"training.{name}=none" for name in names]).training
    assert training == {"epochs": 200, "batch": 64, "evaluation_batch": 64}


def test_early_stopping_comes_whole() -> None:
    with pytest.raises(SettingsError, match=r"needs training\.factor and training\.lr_min too"):
        resolve("pmnist", "gpm", ["training.patience=3"])
    whole = ["training.patience=3", "training.factor=2", "training.lr_min=1e-4"]
    assert resolve("pmnist", "gpm", whole).training["lr_min"] == 1e-4


def test_a_layers_own_number_of_samples_is_checked() -> None:
    settings = resolve("split-cifar100", "gpm", ['layer_samples={"*"=50, conv1=10}'])
    assert list(settings.options["layer_samples"].items()) == [("conv1", 10), ("*", 50)]  # the special first
    with pytest.raises(SettingsError, match=r'layer_samples takes a table {"conv1" = …, .* a whole number from 1'):
        resolve("split-cifar100", "gpm", ["layer_samples={conv1=0}"])


def test_samples_of_the_recipes_layers_do_not_follow_to_another_network() -> None:
    other = "network.name=resnet18"
    assert "layer_samples" not in resolve("split-cifar100", "gpm", [other]).options
    assert resolve("split-cifar100", "gpm", [other, "layer_samples={stem=9}"]).options["layer_samples"] == {"stem": 9}


@pytest.mark.parametrize("swapped", [False, True])
def test_another_network_starts_from_its_own_defaults(swapped: bool) -> None:
    overrides = ["network.name=resnet18", "network.stem_stride=2"]
    settings = resolve("pmnist", "gpm", overrides[::-1] if swapped else overrides)
    assert settings.network == {"name": "resnet18", "stem_stride": 2}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "thresold=0.9",
            "--set thresold=0.9: no such setting of gpm. Did you mean 'threshold'?  "
            "(remnant list settings gpm --benchmark pmnist shows all.)",
        ),
        ("epochs=1", "no such setting of gpm. Did you mean 'training.epochs'?"),
        ("training.epoch=1", "no such setting of training. Did you mean 'training.epochs'?"),
        ("training.lr=1", "no such setting of training. Did you mean 'lr'?"),
        ("network.hiden=[3]", "no such setting of mlp. Did you mean 'network.hidden'?"),
        ("network.norm=batch", "no such setting of mlp. There are: network.name, network.hidden, network.bias."),
        ("network.name=alexnt", "no such network. Did you mean 'alexnet'?"),
        ("stream.taks=3", "no such setting of pmnist. Did you mean 'stream.tasks'?"),
        ("threshold.stat=0.9", "Did you mean 'threshold.start'?"),
        ("lr.start=0.1", "no such setting of gpm."),
        ("training=3", "There are: training.epochs,"),
        ("lr=-1", "--set lr=-1: lr takes a number above 0 and up to 10."),
        ("lr=0", "lr takes a number above 0"),
        ("lr=nan", "lr takes a number above 0"),
        ("lr=fast", "--set lr=fast: lr takes a number above 0"),
        ("lr=true", "lr takes a number"),
        ("lr=2021-05-03", "lr takes a number"),
        ("samples=0", "samples takes a whole number from 1 to 1,000,000."),
        ("samples=1.5", "samples takes a whole number"),
        ("rank_rule=author", "rank_rule takes 'paper' or 'authors'."),
        ("threshold=1.5", "threshold.value takes a number above 0 and up to 1."),
        ("threshold=none", "threshold.value takes"),
        ("threshold.start=0", "--set threshold.start=0: threshold.start takes a number above 0"),
        ("threshold.layers.head=2", "threshold.layers.head takes a number above 0"),
        ("threshold.step=0.1", "threshold takes"),  # the recipe has {layers}: a step needs its start
        ("threshold={start=0.9, value=0.9}", "threshold takes"),
        ("training.batch=0", "training.batch takes a whole number from 1"),
        ("training.epochs=none", "training.epochs takes a whole number from 1"),
        ("network.hidden=100", "network.hidden takes a list"),
        ("network.hidden=[100, 0]", "network.hidden takes a list"),
        ("network.bias=1", "network.bias takes true or false."),
        ("stream.tasks=0", "stream.tasks takes a whole number from 1 to 1,000."),
        ("stream.valid=1", "stream.valid takes a number from 0 to under 1."),
        ("lr", "expected key=value"),
        ("lr=", "expected key=value"),
        ("=3", "expected key=value"),
        ("lr=[", "--set lr=[: not a value."),
        ("network.name=[1]", "--set network.name=[1]: no such network."),
        ("lr=1\nsamples = 3", "not a value."),
    ],
)
def test_a_bad_override_is_refused_in_plain_words(override: str, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        resolve("pmnist", "gpm", [override])
    assert says in str(error.value)


@pytest.mark.parametrize("letter", "9[x")  # too many digits to read, too many brackets, a word
def test_a_very_long_override_is_refused_in_few_words(letter: str) -> None:
    for override in (f"lr={5000 * letter}", 5000 * letter):
        with pytest.raises(SettingsError, match=r"…: (lr takes|not a value|expected key=value)") as error:
            resolve("pmnist", "gpm", [override])
        assert len(str(error.value)) < 400


def test_unknown_names_are_met_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"No benchmark called 'pmnst'. Did you mean 'pmnist'\?"):
        resolve("pmnst", "gpm")
    with pytest.raises(
        SettingsError, match=r"pmnist has no method 'gmp'. Did you mean 'gpm'\?.* multitask, .*single-task"
    ):
        resolve("pmnist", "gmp")
    with pytest.raises(
        SettingsError, match=r"mnist-incremental has no method 'single-task'.* finetune, .*gpm, multitask"
    ):
        resolve("mnist-incremental", "single-task")
    with pytest.raises(SettingsError, match="paper or sane"):
        resolve("pmnist", "gpm", protocol="insane")
    with pytest.raises(SettingsError, match="No benchmark called 'default'"):
        resolve("default", "gpm")
    with pytest.raises(SettingsError, match=r"order takes a whole number from 0 to 4, or 'seed' \(the seed mod 5\)"):
        resolve("cifar100-superclass", "gpm", ["stream.order=5"])


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> str:
    """A method with an entry in one recipe, as one has it after the steps of docs/adding-a-method.md."""
    monkeypatch.setitem(METHODS, "l2", type("L2", (METHODS["finetune"],), {"name": "l2"}))
    monkeypatch.setitem(recipe("permuted-digits", "paper").methods, "l2", {"lr": 0.05, "strength": 0.3})
    return "l2"


def test_a_method_without_an_entry_is_told_from_one_that_is_none(added: str) -> None:
    entry = r"l2 has no entry \[methods.l2\] in {}.toml"
    with pytest.raises(
        SettingsError, match=entry.format("split-cifar100") + ": add one, or run it on permuted-digits. "
    ):
        resolve("split-cifar100", added)
    with pytest.raises(SettingsError, match=entry.format("default") + ": add one, or run it on permuted-digits. "):
        resolve("own.py:stream", added)
    with pytest.raises(
        SettingsError, match=entry.format("default") + ", .* Pass --benchmark permuted-digits, or add one."
    ):
        describe(None, added)
    with pytest.raises(SettingsError, match=r"No method called 'l3'. Did you mean 'l2'\?"):
        describe(None, "l3")


def test_the_hint_after_a_typo_leads_to_a_list(added: str) -> None:
    with pytest.raises(SettingsError, match="Did you mean 'strength'") as error:
        resolve("permuted-digits", added, ["strengt=1"])
    method, _, benchmark = str(error.value).partition("remnant list settings ")[2].split()[:3]
    assert "strength" in {setting.key for setting in describe(benchmark, method)}
    with pytest.raises(SettingsError, match=r"\(remnant list settings gpm shows all.\)"):
        resolve("own.py:stream", "gpm", ["thresold=0.9"])


def test_a_method_that_must_be_told_the_task_may_lack_an_entry_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "needs_task", {"hat", "other"}.__contains__)
    monkeypatch.setitem(METHODS, "other", METHODS["hat"])
    with pytest.raises(SettingsError, match="hat must be told the task at test time"):
        resolve("pmnist", "hat")
    with pytest.raises(SettingsError, match=r"other has no entry \[methods.other\] in split-cifar100.toml: add one. "):
        resolve("split-cifar100", "other")


def test_an_own_stream_takes_any_option_and_the_fallback_s_settings() -> None:
    settings = resolve("my/tasks.py:make", "gpm", ["stream.depth=[1, 2]", "network.name=lenet", "lr=0.2"])
    assert settings.stream == {"depth": [1, 2]}
    assert (settings.network, settings.options["lr"]) == ({"name": "lenet"}, 0.2)
    assert settings.options["rank_rule"] == "paper"
    assert settings.stream_options(3) == settings.stream
    with pytest.raises(SettingsError, match=r"stream\.since takes a number, a word"):
        resolve("my/tasks.py:make", "gpm", ["stream.since=2021-05-03"])


def test_every_setting_described_can_be_set_to_the_value_shown() -> None:
    for benchmark in (None, *recipe_names()):
        for key, value, allowed, source in describe(benchmark, "gpm"):
            assert allowed
            assert source.endswith(".toml") or source.startswith("default of ")
            written = "none" if value is None else _toml(value)
            name = benchmark or "own.py:stream"
            assert resolve(name, "gpm", [f"{key}={written}"]) == resolve(name, "gpm"), key


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {_toml(item)}' for key, item in value.items()) + "}"
    return json.dumps(value)


# --- digest -------------------------------------------------------------------------------------------------------


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
    threshold = thresholds(back.options["threshold"]["layers"], ["hidden.0", "hidden.1", "head"])
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
