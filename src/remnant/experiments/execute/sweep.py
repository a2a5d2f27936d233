"""One setting over several values: the runs, and a table of their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from remnant.evaluation import Spread
from remnant.options import OptionError

from ..runs import RunFolder
from ..settings import Settings, resolve
from .launch import Plan, pick_device

EXAMPLE = "threshold.start=0.90,0.95"
NOT_FINISHED = "not finished"

# The columns of the table: key in result.json, factor and decimal places.
COLUMNS = {
    "validation ACC, %": ("validation_acc", 100.0, 2),
    "validation BWT": ("validation_bwt", 1.0, 3),
    "ACC, %": ("acc", 100.0, 2),
    "BWT": ("bwt", 1.0, 3),
    "memory, kB": ("memory_bytes", 1e-3, 0),
}


@dataclass(frozen=True)
class Sweep:
    """A setting's key, and the settings for each of its values as the user wrote them."""

    key: str
    points: Mapping[str, Settings]

    @classmethod
    def of(
        cls, benchmark: str, method: str, over: Sequence[str], overrides: Sequence[str] = (), protocol: str = "paper"
    ) -> Sweep:
        """Reads `--over key=value,value,…`, and checks each value together with the `--set` overrides."""
        key, values = _key_and_values(over)
        if any(override.partition("=")[0].strip() == key for override in overrides):
            raise OptionError(f"--over {over[0]}: {key} is in --set too. Give it in one place.")
        points: dict[str, Settings] = {}
        for value in values:
            try:
                settings = resolve(benchmark, method, [*overrides, f"{key}={value}"], protocol)
            except OptionError as error:
                raise OptionError(str(error).replace(f"--set {key}={value}", f"--over {key}={value}")) from None
            if same := next((other for other in points if points[other] == settings), None):
                raise OptionError(f"--over {over[0]}: {value} means the same run as {same}. Give each value once.")
            points[value] = settings
        return cls(key, points)

    @property
    def settings(self) -> Settings:
        """The settings of the first value."""
        return next(iter(self.points.values()))

    def label(self, plan: Plan) -> str:
        """The setting and the value of one plan."""
        return next(f"{self.key}={value}" for value in self.points if self.points[value] == plan.settings)

    def plans(self, how: Plan) -> list[Plan]:
        """One plan for each value, carried out like `how`. All record the first task's drift, which ε decides."""
        pick_device(how.device)  # fails once, and not for every value
        return [replace(how, settings=settings, drift=True) for settings in self.points.values()]

    def rows(self, plans: Sequence[Plan]) -> list[dict[str, str]]:
        """The table of results, a row of text cells for each value."""
        rows = []
        for value, plan in zip(self.points, plans, strict=True):
            results = [result for folder in _finished(plan) if (result := folder.result())]
            row = {self.key: value, "seeds": str(len(results))}
            for heading, (key, scale, places) in COLUMNS.items():
                spread = Spread.of([result.get(key) for result in results], scale)
                row[heading] = spread.text(places) if results else NOT_FINISHED
            rows.append(row)
        return rows


def without_drift(plans: Sequence[Plan]) -> list[str]:
    """A sentence for each finished run that could have recorded its drift, but was made by another command."""
    return [
        f"{folder.path} was run before, without recording its drift, so figures of the drift leave it out. "
        "To include it, move the folder away and sweep again."
        for plan in plans
        for folder in _finished(plan)
        if folder.ranks() and folder.drift() is None
    ]


def _finished(plan: Plan) -> list[RunFolder]:
    found = (RunFolder.find(plan.root, plan.settings, seed) for seed in plan.seeds)
    return [folder for folder in found if folder is not None and folder.finished]


def _key_and_values(over: Sequence[str]) -> tuple[str, list[str]]:
    if len(over) != 1:
        raise OptionError(f"--over {' --over '.join(over)}: only one setting at a time, such as --over {EXAMPLE}.")
    key, equals, text = (part.strip() for part in over[0].partition("="))
    values = list(_split(text))
    if not key or not equals or not all(values):
        missing = "a value is missing" if key and equals else "a key and its values are expected"
        raise OptionError(f"--over {over[0]}: {missing}. Write key=value,value,…, for example {EXAMPLE}.")
    return key, values


def _split(text: str) -> Iterator[str]:
    """Splits at commas, except inside a list, a table or quotes."""
    depth, quote, start = 0, "", 0
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
        depth += 0 if quote else (letter in "[{") - (letter in "]}")
    yield text[start:].strip()
