"""What the page's script draws on demand: the accuracies, curves, ranks and settings of every run, as compact JSON."""

from collections.abc import Sequence
from itertools import groupby
from math import isfinite
from shlex import quote
from typing import Any

from .comparison import MEASURES
from .figures import COLOURS, INK, look_number
from .names import benchmark_title, method_title
from .one_run import OneRun

MOST_POINTS = 300  # of a curve


def page_data(runs: Sequence[OneRun]) -> dict[str, Any]:
    """The runs, which are grouped by variant. Equal environments are listed once."""
    environments: dict[tuple[tuple[str, str], ...], int] = {}
    variants = []
    for _, group in groupby(runs, key=lambda run: run.variant.key):
        found = list(group)
        variants.append({**_variant(found[0]), "runs": [_run(run, environments) for run in found]})
    return {
        "colours": ["ink" if colour == INK else colour for colour in COLOURS],
        "measures": {name: (m.heading, m.scale, m.places) for name, m in MEASURES.items()},
        "environments": list(environments),
        "variants": variants,
    }


def _variant(run: OneRun) -> dict[str, Any]:
    variant = run.variant
    return {
        "id": variant.id,
        "benchmark": variant.benchmark,
        "title": benchmark_title(variant.benchmark),
        "method": variant.method,
        "name": method_title(variant.method),
        "label": variant.label,
        "look": look_number(variant.method),
        "settings": [tuple(row.values()) for row in run.settings()],
        "capacities": variant.capacities if any(each.ranks for each in variant.all_runs) else {},
    }


def _run(run: OneRun, environments: dict[tuple[tuple[str, str], ...], int]) -> dict[str, Any]:
    record = run.record
    environment = tuple((row["environment"], row["value"]) for row in run.environment())
    matrix = () if record.matrix is None else record.matrix.values[: record.learned].tolist()
    return {
        "seed": record.seed,
        "path": record.path,
        "state": run.state,
        "progress": record.position if run.under_way else record.progress,
        "values": record.result and {name: _number(measure.of(record), 12) for name, measure in MEASURES.items()},
        "seconds": {} if record.result is None else {key: _number(s) for key, s in record.result.seconds.items()},
        "R": [[_number(100 * value, 7) for value in row[: t + 1]] for t, row in enumerate(matrix)],
        **_curves(record.metrics),
        "ranks": record.ranks,
        "warnings": list(run.lasting_warnings()),
        "command": run.command,
        "resume": f"remnant resume {quote(str(record.folder.path))}",
        "environment": environments.setdefault(environment, len(environments)),
    }


def _curves(metrics: Sequence[Any]) -> dict[str, list[float | None]]:
    """The loss and validation accuracy, and the epochs (over all tasks) of their points."""
    step = -(-len(metrics) // MOST_POINTS) or 1
    shown = [*range(0, len(metrics) - 1, step), *([len(metrics) - 1] if metrics else [])]
    loss, valid = ([_number(metrics[index].get(key)) for index in shown] for key in ("loss", "valid_accuracy"))
    return {"epochs": [index + 1 for index in shown], "loss": loss, "valid": valid}


def _number(value: float | None, digits: int = 5) -> float | None:
    """Rounds to the significant digits that a chart shows. Infinite values and NaN become None."""
    return float(f"{value:.{digits}g}") if value is not None and isfinite(value) else None
