"""What differs between two runs: settings, code and results."""

from collections.abc import Mapping
from typing import Any

from remnant.evaluation import NO_VALUE, Spread

from .comparison import MEASURES
from .one_run import OneRun, Rows
from .records import RunRecord
from .variants import flatten


def difference(first: OneRun, second: OneRun) -> dict[str, Rows]:
    """Returns what differs between two runs, by section. A section without differences is empty."""
    records = first.record, second.record
    settings = [{**dict(flatten(record.settings)), "seed": str(record.seed)} for record in records]
    code = [dict(flatten(_plain(record.environment))) for record in records]
    return {
        "setting": _unequal("setting", *settings),
        "code": _unequal("code", *code),
        "result": _results(*records),
    }


def _plain(environment: Mapping[str, Any]) -> dict[str, Any]:
    before = [f"{each.get('commit') or each.get('remnant')}" for each in environment.get("before", [])]
    return {**environment, **({"before": ", ".join(before)} if before else {})}


def _unequal(heading: str, a: Mapping[str, str], b: Mapping[str, str]) -> Rows:
    keys = [key for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]
    return [{heading: key, "first": a.get(key, NO_VALUE), "second": b.get(key, NO_VALUE)} for key in keys]


def _results(a: RunRecord, b: RunRecord) -> Rows:
    """The figures of both runs that differ, and how many entries of their accuracy matrices do."""
    rows = []
    for measure in MEASURES.values():
        x, y = (None if run.result is None else measure.of(run) for run in (a, b))
        if x != y:
            change = Spread(None if x is None or y is None else y - x)
            row = {"result": measure.heading, "first": measure.text(Spread(x)), "second": measure.text(Spread(y))}
            rows.append({**row, "difference": measure.text(change, "+")})
    return rows


def matrix_difference(a: RunRecord, b: RunRecord) -> str:
    """Returns a sentence on the accuracy matrices of two runs."""
    if a.matrix is None or b.matrix is None or a.matrix.tasks != b.matrix.tasks:
        tasks = [0 if run.matrix is None else run.matrix.tasks for run in (a, b)]
        return f"The accuracy matrices do not compare: they have {tasks[0]} and {tasks[1]} tasks."
    if a.matrix == b.matrix:
        return f"The accuracies are the same to the last digit, after {a.learned} of {a.matrix.tasks} tasks."
    gap = abs(a.matrix.values - b.matrix.values)
    pairs = [(t, i) for t in range(len(gap)) for i in range(len(gap)) if gap[t, i] > 0]
    if not pairs:
        return f"The same accuracies, as far as both runs have got: {a.learned} and {b.learned} tasks."
    largest = max(pairs, key=lambda pair: gap[pair])
    return (
        f"{len(pairs)} accuracies differ, first after task {pairs[0][0] + 1}; most by {100 * gap[largest]:.1f} points, on "
        f"task {largest[1] + 1} after task {largest[0] + 1}."
    )
