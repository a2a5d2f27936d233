"""One setting over several values: the runs, and a table of their results."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from remnant.evaluation import Spread
from remnant.options import OptionError

from ..runs import RunFolder
from ..settings import Settings, resolve
from .launch import Plan

EXAMPLE = "threshold.start=0.90,0.95"
NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?"
RANGE = rf"({NUMBER})\.\.({NUMBER})(:log)?"  # of --search: lr=0.001..0.1:log

# The columns of the table: key in result.json, factor and decimal places.
COLUMNS = {
    "validation ACC, %": ("validation_acc", 100.0, 2),
    "validation BWT": ("validation_bwt", 1.0, 3),
    "ACC, %": ("acc", 100.0, 2),
    "BWT": ("bwt", 1.0, 3),
    "memory, kB": ("memory_bytes", 1e-3, 0),
}


def sweep_settings(
    benchmark: str, method: str, over: Sequence[str], overrides: Sequence[str] = (), protocol: str = "paper"
) -> dict[str, Settings]:
    """Reads `--over key=value,value,…`. Returns the settings for each value, by `key=value` as the user wrote it."""
    key, values = _key_and_values(over)
    if any(override.partition("=")[0].strip() == key for override in overrides):
        raise OptionError(f"--over {over[0]}: {key} is in --set too. Give it in one place.")
    found: dict[str, Settings] = {}
    for change in (f"{key}={value}" for value in values):
        try:
            settings = resolve(benchmark, method, [*overrides, change], protocol)
        except OptionError as error:
            raise OptionError(str(error).replace(f"--set {change}", f"--over {change}")) from None
        if same := next((other for other in found if found[other] == settings), None):
            raise OptionError(f"--over {over[0]}: {change} means the same run as {same}. Give each value once.")
        found[change] = settings
    return found


def sweep_rows(plans: Mapping[str, Plan]) -> list[dict[str, str]]:
    """Returns the table of results: a row of text cells for each `key=value` and its plan."""
    rows = []
    for change, plan in plans.items():
        key, _, value = change.partition("=")
        results = [result for folder in finished_runs(plan) if (result := folder.result())]
        row = {key: value, "seeds": str(len(results))}
        for heading, (figure, scale, places) in COLUMNS.items():
            spread = Spread.of([result.get(figure) for result in results], scale)
            row[heading] = spread.text(places) if results else "not finished"
        rows.append(row)
    return rows


def without_drift(plans: Iterable[Plan]) -> list[str]:
    """Returns a sentence for each finished run of another command, which has not recorded the drift that it could have."""
    return [
        f"{folder.path} was run before without recording its drift, so the drift figures leave it out. "
        "To include it, move the folder away and sweep again."
        for plan in plans
        for folder in finished_runs(plan)
        if folder.ranks() and folder.drift() is None
    ]


def finished_runs(plan: Plan) -> list[RunFolder]:
    """The finished runs of a plan. Makes no folders."""
    found = (RunFolder.find(plan.root, plan.settings, seed) for seed in plan.seeds)
    return [folder for folder in found if folder is not None and folder.finished]


def _key_and_values(over: Sequence[str]) -> tuple[str, list[str]]:
    if len(over) != 1:
        raise OptionError(f"--over {' --over '.join(over)}: only one setting at a time, such as --over {EXAMPLE}.")
    key, equals, text = (part.strip() for part in over[0].partition("="))
    values = list(split_values(text))
    if ranges := [value for value in values if re.fullmatch(RANGE, value)]:
        raise OptionError(
            f"--over {over[0]}: {ranges[0]} is a range. Add --search 50 to search it, or list its values."
        )
    if not key or not equals or not all(values):
        missing = "a value is missing" if key and equals else "a key and its values are expected"
        raise OptionError(f"--over {over[0]}: {missing}. Write key=value,value,…, for example {EXAMPLE}.")
    return key, values


def split_values(text: str) -> Iterator[str]:
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
