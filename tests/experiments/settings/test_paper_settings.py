"""The appendix's list of hyperparameters, row by row, against the recipes; and that no recipe lacks a method for no reason."""

from __future__ import annotations

import pytest

from remnant.experiments.settings import RECIPES, recipe, resolve
from remnant.methods import METHODS
from remnant.options import OptionError

PERM, CIFAR, MINI, FIVE = "pmnist", "split-cifar100", "split-miniimagenet", "five-datasets"
# Method, setting → its value on each benchmark.
APPENDIX: dict[tuple[str, str], dict[str, float]] = {
    ("ogd", "lr"): {PERM: 0.001},
    ("ogd", "samples"): {PERM: 200},
    ("owm", "lr"): {CIFAR: 0.01, PERM: 0.3},
    ("gem", "lr"): {PERM: 0.1},
    ("gem", "memory"): {PERM: 1000},
    ("gem", "memory_strength"): {PERM: 0.5},
    ("agem", "lr"): {CIFAR: 0.05, PERM: 0.1, MINI: 0.1, FIVE: 0.1},
    ("agem", "memory"): {PERM: 1000, CIFAR: 2000, MINI: 500, FIVE: 3000},
    ("er", "lr"): {CIFAR: 0.05, PERM: 0.1, MINI: 0.1, FIVE: 0.1},
    ("er", "memory"): {PERM: 1000, CIFAR: 2000, MINI: 500, FIVE: 3000},
    ("ewc", "lr"): {PERM: 0.03, MINI: 0.03, FIVE: 0.03, CIFAR: 0.05},
    ("ewc", "strength"): {PERM: 1000, CIFAR: 5000, MINI: 5000, FIVE: 5000},
    ("hat", "lr"): {MINI: 0.03, CIFAR: 0.05, FIVE: 0.1},
    ("hat", "s_max"): {CIFAR: 400, MINI: 400, FIVE: 400},
    ("hat", "sparsity"): {CIFAR: 0.75, MINI: 0.75, FIVE: 0.75},
    ("multitask", "lr"): {CIFAR: 0.05, PERM: 0.1, MINI: 0.1, FIVE: 0.1},
    ("gpm", "lr"): {PERM: 0.01, CIFAR: 0.01, MINI: 0.1, FIVE: 0.1},
    ("gpm", "samples"): {MINI: 100, FIVE: 100, CIFAR: 125, PERM: 300},
}


@pytest.mark.parametrize(("method", "setting"), APPENDIX)
def test_a_recipe_has_the_appendixs_value(method: str, setting: str) -> None:
    wanted = APPENDIX[method, setting]
    assert {benchmark: resolve(benchmark, method).options[setting] for benchmark in wanted} == wanted


def test_every_method_of_the_papers_tables_is_in_the_recipe() -> None:
    for benchmark in (PERM, CIFAR, MINI, FIVE):
        assert recipe(benchmark).paper.keys() <= recipe(benchmark).methods.keys()


@pytest.mark.parametrize("benchmark", RECIPES)
def test_a_method_that_a_benchmark_has_not_says_why(benchmark: str) -> None:
    content = recipe(benchmark)
    assert content.without.keys() <= METHODS.keys() - content.methods.keys()
    for method in {method for method, _ in APPENDIX} - content.methods.keys():
        reason = "needs the task at test time" if METHODS[method].needs_task else content.without[method]
        with pytest.raises(OptionError, match=f"{method} cannot run on {benchmark}. .*{reason}.* shows all methods"):
            resolve(benchmark, method)
