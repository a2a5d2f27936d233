"""Options are read from signatures, and values are checked against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from remnant.options import (
    ANYTHING,
    REQUIRED,
    Kind,
    OptionError,
    Positive,
    Share,
    checked,
    choice,
    each_layer,
    kind_of,
    list_of,
    number,
    options_of,
    per_layer,
    threshold,
    whole,
)

if TYPE_CHECKING:
    from decimal import Decimal as Unknown


class Base:
    def __init__(self, network: object, *, lr: Annotated[float, number(0, 10, above=True)] = 0.01) -> None: ...


class Child(Base):
    def __init__(self, network: object, *, strength: float, layers: Sequence[int] = (1, 2), **options: Any) -> None: ...


class Closed(Base):
    def __init__(self, network: object, samples: Positive = 3) -> None: ...


@dataclass
class Fields:
    epochs: Positive
    patience: Positive | None = None


def test_a_class_that_passes_keyword_arguments_on_has_the_options_of_its_base() -> None:
    options = options_of(Child)
    assert list(options) == ["strength", "layers", "lr"]
    assert options["strength"].default is REQUIRED
    assert options["layers"].default == [1, 2]
    assert options["lr"].kind.words == "a number above 0 and up to 10"
    assert list(options_of(Closed)) == ["samples"]


def test_all_parameters_of_functions_and_dataclasses_are_options_but_the_seed() -> None:
    def make(seed: int, tasks: int, *, depth: int = 2) -> None: ...

    assert list(options_of(make)) == ["tasks", "depth"]
    assert list(options_of(Fields)) == ["epochs", "patience"]
    assert options_of(Fields)["patience"].kind.optional


def test_an_option_without_a_readable_annotation_goes_by_its_default() -> None:
    def make(*, share=0.5, on=True, size=3, unknown: Unknown | None = None) -> None:  # type: ignore[no-untyped-def]
        ...

    words = {name: option.kind.words for name, option in options_of(make).items()}
    assert words["share"] == "a number"
    assert words["on"] == "true or false"
    assert words["size"] == ANYTHING.words
    assert words["unknown"].endswith("or none")


def test_options_are_checked_by_name_and_value() -> None:
    assert checked(Child, {"strength": 1, "layers": (3,)}, "child") == {"strength": 1.0, "layers": [3]}
    with pytest.raises(OptionError, match=r"strengt=1: no such option of child. Did you mean 'strength'\?"):
        checked(Child, {"strengt": 1}, "child")
    with pytest.raises(OptionError, match="lr=0: lr takes a number above 0 and up to 10"):
        checked(Child, {"lr": 0}, "child")


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, 3, 3.5),
        (int, 0, True),
        (Positive, 1, 0),
        (float, -2.5, float("nan")),
        (float, 1e300, "many"),
        (float, 1.0, 10**400),
        (Share, 0.0, 1.0),
        (bool, False, 0),
        (str, "word", 1),
        (Literal["a", "b"], "a", "c"),
        (tuple[float, float], [1.0, 2.0], [1.0]),
        (Sequence[int], [1], []),
        (list[Positive], [1, 2], [1, 0]),
        (int | None, None, "none"),
        (Positive | None, 2, 0),
        (Annotated[int | str, choice(["x"])], "x", 3),
        (int | str, "x", float("inf")),
        (dict[str, int], {"a": 1}, {"a": {1, 2}}),
    ],
)
def test_a_kind_takes_its_values_and_refuses_others(annotation: Any, good: object, bad: object) -> None:
    kind = kind_of(annotation)
    assert kind.read(good, "x") == good
    with pytest.raises(OptionError, match=r"^x(\[1\])? takes "):
        kind.read(bad, "x")


def test_numbers_have_one_form() -> None:
    assert type(number(0, 10).read(1)) is float
    assert list_of(number(0, 10), 2).read((0, 1)) == [0.0, 1.0]


def test_tables_by_layer() -> None:
    assert per_layer(whole(1)).read({"conv1": 2}) == {"conv1": 2}
    assert each_layer(number(0, 1)).read(1) == {"*": 1.0}
    with pytest.raises(OptionError, match=r'^x takes a table {"conv1" = …'):
        per_layer(whole(1)).read(3, "x")
    with pytest.raises(OptionError, match=r"^x\.conv1 takes a whole number from 1"):
        per_layer(whole(1)).read({"conv1": 0}, "x")
    with pytest.raises(OptionError, match=r"^x takes a number from 0 to 1, or a table"):
        each_layer(number(0, 1)).read(2, "x")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (1, {"value": 1.0}),
        ({"value": 0.9}, {"value": 0.9}),
        ({"start": 0.9}, {"start": 0.9, "step": 0.0}),
        ({"start": 0.9, "step": 0}, {"start": 0.9, "step": 0.0}),
        ({"layers": {"conv*": 1, "*": 0.9}}, {"layers": {"conv*": 1.0, "*": 0.9}}),
    ],
)
def test_a_threshold_has_three_forms(written: object, read: object) -> None:
    assert threshold().read(written) == read


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (0, "^x takes a number above 0 and up to 1, {start"),
        ({"value": 0}, r"^x\.value takes a number above 0"),
        ({"layers": 1}, r"^x\.layers takes a table"),
        ({"start": 2}, r"^x\.start takes a number above 0"),
        ({"start": 0.9, "step": 1}, r"^x\.step takes a number from 0 to under 1"),
        ({"layers": {"head": 2}}, r"^x\.layers\.head takes a number above 0"),
        ({"layers": {}}, "^x takes a number above 0 and up to 1, {start"),
        ({"step": 0.1}, "^x takes a number above 0 and up to 1, {start"),
        ({}, "^x takes a number above 0 and up to 1, {start"),
        ({"value": 0.9, "start": 0.9}, "^x takes a number above 0 and up to 1, {start"),
    ],
)
def test_a_bad_threshold_is_refused_at_its_part(written: object, says: str) -> None:
    kind: Kind = threshold()
    with pytest.raises(OptionError, match=says):
        kind.read(written, "x")
