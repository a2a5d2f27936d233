"""Names that are not there: the nearest, or what is missing and where to add it."""

import pytest

from remnant.experiments.settings.resolve import SettingsError, catalogue, describe, recipe, resolve
from remnant.methods import METHODS


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
    with pytest.raises(SettingsError, match=r"own.py: which stream in it\? Write own.py:NAME"):
        resolve("own.py", "gpm")
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
