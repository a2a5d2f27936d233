"""Overrides change what a recipe says and nothing else, or are refused in plain words."""

import pytest

from remnant.experiments.settings import RECIPES, describe, resolve
from remnant.options import OptionError


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


@pytest.mark.parametrize("overrides", [["lr=0.1", "lr = 0.2"], ["optimizer=adam", "optimizer.name=adamw"]])
def test_a_key_may_be_set_once(overrides: list[str]) -> None:
    with pytest.raises(
        OptionError, match=r"^--set .* --set .*: (lr|optimizer.name) is set twice. Use only one of them.$"
    ):
        resolve("pmnist", "gpm", overrides)


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
        with pytest.raises(OptionError) as error:
            resolve("split-cifar100", "gpm", ["lr=0.1", *overrides])
        assert str(error.value).startswith(f"--set {overrides[0]} --set {overrides[1]}: ")
        assert str(error.value).endswith(". Use only one of them.")


def test_a_whole_table_may_come_before_its_parts_only() -> None:
    whole, part = "threshold={start=0.9}", "threshold.step=0.01"
    assert resolve("pmnist", "gpm", [whole, part]).options["threshold"] == {"start": 0.9, "step": 0.01}
    with pytest.raises(OptionError, match="the second sets all of threshold and would undo the first"):
        resolve("pmnist", "gpm", [part, whole])
    whole, part = "layer_samples={conv1=5}", "layer_samples.conv2=6"
    assert resolve("split-cifar100", "gpm", [whole, part]).options["layer_samples"] == {"conv1": 5, "conv2": 6}
    with pytest.raises(OptionError, match="the second sets all of layer_samples"):
        resolve("split-cifar100", "gpm", [part, whole])


@pytest.mark.parametrize("names", [["patience"], ["patience", "factor"], ["lr_min", "factor", "patience"]])
def test_none_turns_early_stopping_off(names: list[str]) -> None:
    training = resolve("split-cifar100", "gpm", [f"training.{name}=none" for name in names]).training
    assert training == {"epochs": 200, "batch": 64, "evaluation_batch": 64}


def test_early_stopping_comes_whole() -> None:
    with pytest.raises(OptionError, match=r"needs training\.factor and training\.lr_min too"):
        resolve("pmnist", "gpm", ["training.patience=3"])
    whole = ["training.patience=3", "training.factor=2", "training.lr_min=1e-4"]
    assert resolve("pmnist", "gpm", whole).training["lr_min"] == 1e-4


def test_a_layers_own_number_of_samples_is_checked() -> None:
    settings = resolve("split-cifar100", "gpm", ['layer_samples={"*"=50, conv1=10}'])
    assert list(settings.options["layer_samples"].items()) == [("conv1", 10), ("*", 50)]  # the special first
    with pytest.raises(OptionError, match=r"layer_samples\.conv1 takes a whole number from 1"):
        resolve("split-cifar100", "gpm", ["layer_samples={conv1=0}"])
    with pytest.raises(OptionError, match=r'layer_samples takes a table {"conv1" = …, .* a whole number from 1'):
        resolve("split-cifar100", "gpm", ["layer_samples=5"])


def test_samples_of_the_recipes_layers_do_not_follow_to_another_network() -> None:
    other = "network.name=resnet18"
    assert "layer_samples" not in resolve("split-cifar100", "gpm", [other]).options
    assert resolve("split-cifar100", "gpm", [other, "layer_samples={stem=9}"]).options["layer_samples"] == {"stem": 9}


def test_thresholds_of_the_recipes_layers_do_not_follow_to_another_network() -> None:
    assert "threshold" not in resolve("pmnist", "gpm", ["network.name=lenet"]).options  # so its default counts
    assert "start" in resolve("split-cifar100", "gpm", ["network.name=resnet18"]).options["threshold"]


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
        ("network.name=alexnt", "--set network.name=alexnt: No network called 'alexnt'. Did you mean 'alexnet'?"),
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
        ("rank_rule=author", "rank_rule takes 'paper' or 'authors' or 'ranked'."),
        ("threshold=1.5", "threshold takes a number above 0 and up to 1, {start = …, step = …}"),
        ("threshold=none", "threshold takes"),
        ("threshold.value=1.5", "threshold.value takes a number above 0 and up to 1."),
        ("threshold.start=0", "--set threshold.start=0: threshold.start takes a number above 0"),
        ("threshold.layers.head=2", "threshold.layers.head takes a number above 0"),
        ("threshold.step=0.1", "threshold takes"),  # the recipe has {layers}: a step needs its start
        ("threshold={start=0.9, value=0.9}", "threshold takes"),
        ("training.batch=0", "training.batch takes a whole number from 1"),
        ("training.epochs=none", "training.epochs takes a whole number from 1"),
        ("network.hidden=100", "network.hidden takes a list"),
        ("network.hidden=[100, 0]", "network.hidden[1] takes a whole number from 1"),
        ("network.bias=1", "network.bias takes true or false."),
        ("stream.tasks=0", "stream.tasks takes a whole number from 1 to 1,000."),
        ("stream.valid=1", "stream.valid takes a number from 0 to under 1."),
        ("lr", "expected key=value"),
        ("lr=", "expected key=value"),
        ("=3", "expected key=value"),
        ("lr=[", "--set lr=[: not a value."),
        ("network.name=[1]", "--set network.name=[1]: No network called '[1]'."),
        ("lr=1\nsamples = 3", "not a value."),
    ],
)
def test_a_bad_override_is_refused_in_plain_words(override: str, says: str) -> None:
    with pytest.raises(OptionError) as error:
        resolve("pmnist", "gpm", [override])
    assert says in str(error.value)


@pytest.mark.parametrize("letter", "9[x")  # too many digits to read, too many brackets, a word
def test_a_very_long_override_is_refused_in_few_words(letter: str) -> None:
    for override in (f"lr={5000 * letter}", 5000 * letter):
        with pytest.raises(OptionError, match=r"…: (lr takes|not a value|expected key=value)") as error:
            resolve("pmnist", "gpm", [override])
        assert len(str(error.value)) < 400


def test_every_setting_described_can_be_set_to_the_value_shown() -> None:
    for benchmark in (None, *RECIPES):
        for key, value, allowed, source in describe(benchmark, "gpm"):
            assert allowed
            assert source.endswith(".toml") or source.startswith("default of ")
            name = benchmark or "own.py:stream"  # never loaded
            assert resolve(name, "gpm", [f"{key}={value}"]) == resolve(name, "gpm"), key
