"""Names that do not exist are answered with the nearest one, and methods that make no sense with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from remnant.experiments.settings import describe, recipe, resolve
from remnant.methods import METHODS
from remnant.options import OptionError


@pytest.mark.parametrize(
    ("benchmark", "method", "protocol", "says"),
    [
        ("pmnst", "gpm", "paper", r"No benchmark called 'pmnst'. Did you mean 'pmnist'\?"),
        ("pmnist", "gpmm", "paper", r"No method called 'gpmm'. Did you mean 'gpm'\?"),
        (
            "mnist-incremental",
            "single-task",
            "paper",
            r"single-task cannot run on mnist-incremental. A network .* `remnant list methods`",
        ),
        ("pmnist", "hat", "paper", "hat needs the task at test time"),
        ("pmnist", "gpm", "insane", "^--protocol insane: write paper or sane"),
        ("own.py", "gpm", "paper", r"own.py: which stream in it\? Write own.py:NAME"),
        ("default", "gpm", "paper", "No benchmark called 'default'"),
        ("pmnist", "nowhere.py:Method", "paper", r"There is no file nowhere.py\."),
        ("pmnist", "own.py", "paper", r"own.py: which method in it\? Write own.py:NAME\."),
    ],
)
def test_a_name_that_cannot_be_used_is_answered_in_plain_words(
    benchmark: str, method: str, protocol: str, says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        resolve(benchmark, method, protocol=protocol)


def test_an_order_is_a_number_or_the_seed() -> None:
    with pytest.raises(OptionError, match=r"order takes a whole number from 0 to 4, or 'seed'"):
        resolve("cifar100-superclass", "gpm", ["stream.order=5"])


def test_a_method_must_be_a_class_of_methods(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def method(network): ...")
    with pytest.raises(
        OptionError,
        match=r"not a subclass of remnant's Method. Write class method\(Method\), with `from remnant.methods import",
    ):
        resolve("pmnist", f"{tmp_path / 'own.py'}:method")


def test_a_method_that_needs_the_task_runs_where_another_such_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "other", METHODS["hat"])  # type: ignore[arg-type]
    assert resolve("split-cifar100", "other", ["lr=0.1"]).options["lr"] == 0.1
    with pytest.raises(OptionError, match="other needs the task at test time"):
        resolve("pmnist", "other")


def test_a_stream_without_settings_of_its_own_has_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\nfrom remnant.data import Stream\n"
        "def plain():\n"
        "    pair = torch.randn(20, 3), torch.arange(20) % 2\n"
        "    return Stream.from_arrays([pair, pair])\n"
    )
    with pytest.raises(OptionError, match=r"no such setting of .*own.py:plain\. There are: stream.first\."):
        resolve(f"{tmp_path / 'own.py'}:plain", "gpm", ["stream.colour=2"])


def test_the_hint_after_a_typo_leads_to_a_list() -> None:
    with pytest.raises(OptionError, match="Did you mean 'strength'") as error:
        resolve("permuted-digits", "ewc", ["strengt=1"])
    method, _, benchmark = str(error.value).partition("remnant list settings ")[2].split()[:3]
    assert "strength" in {setting.key for setting in describe(benchmark, method)}


@pytest.mark.parametrize(
    ("method", "override", "hint"),
    [
        ("gpm", "learning_rate=0.1", "Did you mean 'lr'?"),
        ("gpm", "batch_size=3", "Did you mean 'training.batch'?"),
        ("gpm", "training.batch-size=3", "Did you mean 'training.batch'?"),
        ("gpm", "epsilon=0.9", "Did you mean 'threshold'?"),
        ("gpm", "eps=0.9", "Did you mean 'threshold'?"),
        ("gpm", "n_epochs=1", "Did you mean 'training.epochs'?"),
        ("gpm", "hidden_size=3", "Did you mean 'network.hidden'?"),
        ("gpm", "wd=0.1", "Did you mean 'optimizer.weight_decay'?"),
        ("gpm", "weight_decay=0.1", "Did you mean 'optimizer.weight_decay'?"),
        ("gpm", "optimiser=adam", "Did you mean 'optimizer.name'?"),
        ("er", "buffer_size=3", "Did you mean 'memory'?"),
        ("ewc", "lambda=3", "Did you mean 'strength'?"),
        ("gpm", "seed=3", "Choose seeds with --seeds"),
        ("gpm", "stream.seed=3", "Choose seeds with --seeds"),
    ],
)
def test_names_from_other_libraries_lead_to_ours(method: str, override: str, hint: str) -> None:
    with pytest.raises(OptionError) as error:
        resolve("pmnist", method, [override])
    assert str(error.value).startswith(f"--set {override}: ")
    assert hint in str(error.value)


def test_every_recipe_names_methods_that_exist() -> None:
    assert recipe("pmnist").methods.keys() <= METHODS.keys()
