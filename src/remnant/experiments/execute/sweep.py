"""One setting over several values: which runs that means, and what came out for each value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..paper.tables import cell, measured
from ..runs.folder import RunFolder
from ..settings.resolve import Settings, SettingsError, resolve
from .plan import Plan, pick_device

EXAMPLE = "threshold.start=0.90,0.95"
OPENING, CLOSING = "[{", "]}"
NOT_FINISHED = "not finished"


@dataclass(frozen=True)
class Point:
    """One value of the setting, as it was written, and the settings it gives."""

    value: str
    settings: Settings


@dataclass(frozen=True)
class Sweep:
    """A setting's key and its points."""

    key: str
    points: tuple[Point, ...]

    @classmethod
    def of(
        cls, benchmark: str, method: str, over: Sequence[str], overrides: Sequence[str] = (), protocol: str = "paper"
    ) -> Sweep:
        """`over` (key=value,value,…) checked value by value as an override is, on top of the `overrides` all runs share."""
        if len(over) != 1:
            raise SettingsError(f"--over {' --over '.join(over)}: one setting at a time, --over {EXAMPLE}.")
        key, equals, text = (part.strip() for part in over[0].partition("="))
        values = list(_split(text))
        if not key or not equals or not all(values):
            missing = "a value is missing" if key and equals else "expected a key and its values"
            raise SettingsError(f"--over {over[0]}: {missing}. Write key=value,value,…, for example {EXAMPLE}.")
        if any(override.partition("=")[0].strip() == key for override in overrides):
            raise SettingsError(f"--over {over[0]}: {key} is in --set too. Give it in one place.")
        points: dict[str, Point] = {}
        for value in values:
            try:
                settings = resolve(benchmark, method, [*overrides, f"{key}={value}"], protocol)
            except SettingsError as error:
                raise SettingsError(str(error).replace(f"--set {key}={value}", f"--over {key}={value}")) from None
            if known := points.get(settings.digest):
                raise SettingsError(
                    f"--over {over[0]}: {value} means the same run as {known.value}. Give each value once."
                )
            points[settings.digest] = Point(value, settings)
        return cls(key, tuple(points.values()))

    @property
    def settings(self) -> Settings:
        """Those of the first value."""
        return self.points[0].settings

    def label(self, plan: Plan) -> str:
        """Which value a plan is for."""
        return next(f"{self.key}={point.value}" for point in self.points if point.settings == plan.settings)

    def plans(self, how: Plan) -> list[Plan]:
        """One for each value, carried out as `how` is; of the first task's drift, which ε decides, all keep a record."""
        pick_device(how.device)  # refused now, and not once for every value
        return [replace(how, settings=point.settings, drift=True) for point in self.points]

    def rows(self, plans: Sequence[Plan]) -> list[dict[str, str]]:
        """What came out for each value, as text cells."""
        return [
            {self.key: point.value, **_row(_finished(plan))} for point, plan in zip(self.points, plans, strict=True)
        ]


def _finished(plan: Plan) -> list[RunFolder]:
    found = (RunFolder.find(plan.root, plan.settings, seed) for seed in plan.seeds)
    return [folder for folder in found if folder is not None and folder.finished]


def _row(folders: Sequence[RunFolder]) -> dict[str, str]:
    results = [result for folder in folders if (result := folder.result())]

    def figure(name: str, scale: float = 1.0) -> str:
        figure = measured([result.get(name) for result in results], scale)
        return cell(name.removeprefix("validation_"), figure) if results else NOT_FINISHED

    return {
        "seeds": str(len(results)),
        "validation ACC, %": figure("validation_acc", 100.0),
        "validation BWT": figure("validation_bwt"),
        "ACC, %": figure("acc", 100.0),
        "BWT": figure("bwt"),
        "memory, kB": figure("memory_bytes", 1e-3),
    }


def without_drift(plans: Sequence[Plan]) -> list[str]:
    """A sentence for each finished run whose drift could have been recorded and was not: it was made by another command."""
    return [
        f"{folder.path} was run before, without a record of its drift: figures of it will lack this run. "
        "Move the folder away and sweep again to have it."
        for plan in plans
        for folder in _finished(plan)
        if folder.ranks() and folder.drift() is None
    ]


def _split(text: str) -> Iterator[str]:
    """At the commas, but for those inside a list, a table or quotes."""
    depth, quote, start = 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
        depth += 0 if quote else (letter in OPENING) - (letter in CLOSING)
    yield text[start:].strip()
