"""Gives every test an empty store, and stand-ins for datasets that this machine may not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from originals import REAL_ROOT, Arrays, blank

from remnant.data import class_groups, permuted
from remnant.data.sets import sources
from remnant.data.sets.store import Dataset, load_dataset


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, so that no test reads or changes the datasets of this machine."""
    folder = tmp_path / "store"
    monkeypatch.setenv("REMNANT_DATA", str(folder))
    return folder


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Uses the prepared datasets of this machine, or skips the test and says which one is missing."""

    def use(*names: str) -> None:
        for name in names:
            if not (REAL_ROOT / f"{name}.npz").exists():
                pytest.skip(f"the prepared set '{name}' is not on this machine (remnant data fetch {name})")
        monkeypatch.setenv("REMNANT_DATA", str(REAL_ROOT))

    return use


@pytest.fixture
def small_counts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets a dataset have the counts of the small files of a test."""

    def use(name: str, train: int, test: int, classes: int) -> None:
        entry = replace(sources.SOURCES[name], counts=((train, test),), classes=(classes,))
        monkeypatch.setitem(sources.SOURCES, name, entry)

    return use


@pytest.fixture
def fake_sets(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Dataset]]:
    """Replaces `load_dataset`: datasets have the given arrays, or else blank images in their real number."""
    made: dict[str, Dataset] = {}

    def load(name: str) -> Dataset:
        if name == "digits":
            return load_dataset(name)
        if name not in made:
            use(**{name: blank(name)})
        return made[name]

    def use(**given: Arrays) -> dict[str, Dataset]:
        for name, arrays in given.items():
            height, width, *colours = arrays["train_images"].shape[1:]
            made[name] = Dataset(name, arrays, (*(colours or [1]), height, width))
        for module in (class_groups, permuted):
            monkeypatch.setattr(module, "load_dataset", load)
        return made

    return use
