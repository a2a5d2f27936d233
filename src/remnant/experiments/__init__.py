"""Experiments: settings, runs and the paper's tables.

Example:
    >>> from pathlib import Path
    >>> from remnant.experiments import Plan, find_runs, resolve, run
    >>> plan = Plan(resolve("permuted-digits", "gpm", ["training.epochs=1"]), seeds=(0, 1), root=Path("runs"))
    >>> folders = run(plan)  # doctest: +SKIP
    >>> [folder.result()["acc"] for folder in find_runs(Path("runs"))]  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from remnant.lazy import lazy_exports

if TYPE_CHECKING:
    from .execute import Plan, run
    from .runs import find_runs
    from .settings import resolve
else:
    __getattr__, __dir__ = lazy_exports(
        __name__, {"Plan": ".execute", "find_runs": ".runs", "resolve": ".settings", "run": ".execute"}
    )

__all__ = ["Plan", "find_runs", "resolve", "run"]
