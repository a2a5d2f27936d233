"""Names lead to registered things, entry points and files of the user's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from remnant import registry as room
from remnant.errors import UserError, did_you_mean, nearest
from remnant.registry import IN_FILE, Registry, UnknownNameError, file_of, load_from_file


class Own:
    class Inner: ...


@pytest.fixture
def shapes() -> Registry[Any]:
    found: Registry[Any] = Registry("shape", "example.shapes")
    found["square"] = int
    found["circle"] = float
    return found


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a distribution that offers one shape that loads and one that does not."""
    folder = tmp_path / "plug-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[example.shapes]\nstar = plug_shapes:Star\nbroken = plug_shapes:Gone\n")
    (tmp_path / "plug_shapes.py").write_text("class Star:\n    '''Five points.'''\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_names_that_were_registered(shapes: Registry[Any]) -> None:
    assert shapes["square"] is int
    assert list(shapes) == ["square", "circle"]
    assert "circle" in shapes
    assert "star" not in shapes
    del shapes["circle"]
    assert len(shapes) == 1
    with pytest.raises(UnknownNameError, match=r"^No shape called 'sqare'\. Did you mean 'square'\?$"):
        shapes["sqare"]


def test_entry_points_are_listed_and_loaded(shapes: Registry[Any], installed: None) -> None:
    assert list(shapes) == ["square", "circle", "broken", "star"]
    assert "star" in shapes
    assert shapes["star"].__doc__ == "Five points."
    with pytest.raises(UnknownNameError, match=r"The shape 'broken' \(plug_shapes:Gone\) could not be run: Attribute"):
        shapes["broken"]


def test_a_file_reference(shapes: Registry[Any], tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from number_of_sides import number\nclass Shape:\n    sides = number\n")
    (tmp_path / "number_of_sides.py").write_text("number = 7\n")
    assert shapes[f"{file}:Shape"].sides == 7
    assert shapes[f"{file}:Shape"] is shapes[f"{file}:Shape"]  # the file ran once
    assert str(tmp_path) not in sys.path
    assert f"{file}:Shape" not in shapes  # it is not among the names that are listed
    file.write_text("class Shape:\n    sides = 8\n")
    os.utime(file, ns=(1, 1))
    assert shapes[f"{file}:Shape"].sides == 8
    assert IN_FILE in "a/b.py:C"
    assert IN_FILE not in "a/b.py"
    assert file_of("~/b.py:C") == Path("~/b.py").expanduser()


def test_files_of_the_same_name_do_not_mix(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "own.py").write_text(f"class Shape:\n    sides = {number}\n")
    one, two = (load_from_file(f"{tmp_path}/{number}/own.py:Shape") for number in (1, 2))
    assert (one.sides, two.sides) == (1, 2)
    assert one.__module__ != two.__module__


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        ("class Shape: ...", "Shap", "has no 'Shap'. Did you mean 'Shape'?"),
        ("class Shape: ...", "Sh ape", "expected path/to/file.py:Name"),
        ("1 / 0", "Shape", "could not be run: ZeroDivisionError: division by zero."),
        ("from remnant.errors import UserError\nraise UserError('no data')", "Shape", "no data"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: str, name: str, says: str) -> None:
    (tmp_path / "own.py").write_text(content)
    with pytest.raises(UserError) as error:
        load_from_file(f"{tmp_path / 'own.py'}:{name}")
    assert says in str(error.value)


def test_a_missing_file() -> None:
    with pytest.raises(UnknownNameError, match=r"There is no file nowhere.py\."):
        load_from_file("nowhere.py:Shape")


def test_an_object_has_a_name_that_leads_back_to_it(shapes: Registry[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert shapes.name_of("any word") == "any word"
    assert shapes.name_of(int) == "square"
    monkeypatch.chdir(Path(__file__).parent)
    assert shapes.name_of(Own) == "test_registry.py:Own"
    monkeypatch.setattr(room, "load_from_file", None)
    assert shapes["test_registry.py:Own"] is Own  # this file is not run again


@pytest.mark.parametrize("thing", [Own.Inner, lambda: None, type("Typed", (), {}), 3, [1]])
def test_an_object_that_no_other_process_could_find(shapes: Registry[Any], thing: object) -> None:
    with pytest.raises(UnknownNameError, match="Define the shape at the top level of a Python file"):
        shapes.name_of(thing)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("table1", "Did you mean 'table1a' or 'table1b'?"),
        ("cifar", "Did you mean 'cifar10' or 'cifar100'?"),
        ("cifar-10", "Did you mean 'cifar10'?"),
        ("split_m", "Did you mean 'split-mnist'?"),
        ("split-", "Did you mean 'split-mnist'?"),  # more than three begin with it
        ("foo", "Choose from: "),
        ("", "Choose from: "),
    ],
)
def test_names_that_begin_with_the_word_are_offered(word: str, says: str) -> None:
    split = [f"split-{each}" for each in ("mnist", "longer", "longest", "even-longer")]
    names = ["table1a", "table1b", "cifar10", "cifar100", *split]
    assert did_you_mean(word, names).startswith(says)


def test_a_hint_says_what_shows_all_names() -> None:
    methods: Registry[object] = Registry("method", "example.methods")
    methods["gpm"] = int
    with pytest.raises(UnknownNameError, match=r"Did you mean 'gpm'\?  \(remnant list methods shows all\.\)$"):
        methods["gpmm"]


def test_of_equally_close_names_the_one_with_the_same_letters_is_meant() -> None:
    assert nearest("gmp", ["gem", "sgp", "gpm"]) == "gpm"
    assert nearest("taks", ["task", "tasks"]) == "tasks"
