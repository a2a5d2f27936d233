"""Recipes hold the paper's numbers, each typed here once more, and resolve to networks one can build."""

import pytest

from remnant.data import BENCHMARKS
from remnant.experiments.settings import RECIPES, describe, recipe, resolve
from remnant.models import build
from remnant.options import options_of

EVERYTHING = [
    (benchmark, method, protocol)
    for benchmark in RECIPES
    for method in recipe(benchmark).methods
    for protocol in ("paper", "sane")
]

# Typed from the paper's appendix and the published code: lr, samples, epochs, batch, (patience, factor, lr_min).
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


def test_every_benchmark_has_a_recipe_and_no_recipe_lacks_its_benchmark() -> None:
    assert sorted(BENCHMARKS) == RECIPES


@pytest.mark.parametrize(("benchmark", "method", "protocol"), EVERYTHING)
def test_every_recipe_resolves_to_a_network_one_can_build(benchmark: str, method: str, protocol: str) -> None:
    settings = resolve(benchmark, method, protocol=protocol)
    options = dict(settings.network)
    # Small, but every option is really passed.
    small = {} if options["name"] == "mlp" else {"width": 4}
    build(options.pop("name"), input_shape=(3, 84, 84), classes=2, **{**options, **small})
    assert settings.stream.keys() <= options_of(BENCHMARKS[benchmark]).keys()
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
    assert {(b, m) for b in RECIPES for m in recipe(b).paper} == typed


@pytest.mark.parametrize("benchmark", [b for b in RECIPES if "norm" in recipe(b).network])
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
    assert resolve("cifar100-superclass", "gpm").stream["order"] == "seed"
    assert resolve("cifar100-superclass", "gpm", ["stream.order=3"]).stream["order"] == 3


@pytest.mark.parametrize("benchmark", RECIPES)
def test_no_option_of_a_recipe_is_of_any_kind(benchmark: str) -> None:
    for method in recipe(benchmark).methods:
        for setting in describe(benchmark, method):
            assert "list or table of them" not in setting.allowed, (method, setting.key)
            if setting.key == "lr":
                assert setting.allowed == "a number above 0 and up to 10"
