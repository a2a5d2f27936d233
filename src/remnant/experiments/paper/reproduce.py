"""Reproduces the paper's tables: finds the runs that are missing, and shows our figures beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from ..execute import Plan, pick_device
from ..runs import RunError, RunResult, keep_results, readable_runs
from .tables import ResultKey, Table, comparison_rows
from .timing import TIMING_TABLE, keep_timings, time_methods, timing_rows

TimingJob = Callable[[Callable[[str], None]], None]  # takes a function that prints a line


class Reproduction:
    """One table of the paper: the work that is missing, and the rows to print.

    Args:
        table: from `select_tables`.
        runs: the folder of runs.
        kept: the folder of finished results; its seeds take precedence.
    """

    def __init__(self, table: Table, runs: Path, kept: Path) -> None:
        self.table, self.runs, self.kept = table, runs, kept

    def missing(
        self, seeds: Sequence[int], device: str = "auto", parallel: int = 0
    ) -> tuple[list[Plan | TimingJob], list[str]]:
        """The work that is missing, and a sentence for each run that cannot be read.

        The work is a plan for the missing seeds of each row. Table 2 is always measured again, one job per benchmark.
        """
        rows = self.table.to_run()
        if self.table.name == TIMING_TABLE:
            pick_device(device)  # fails once, and not for every benchmark
            groups = [
                [row for row in rows if row.benchmark == name] for name in dict.fromkeys(r.benchmark for r in rows)
            ]
            return [partial(time_methods, group, device, self.runs) for group in groups], []
        results, problems = finished_results([self.kept, self.runs])
        plans: list[Plan | TimingJob] = []
        for row in rows:
            todo = tuple(seed for seed in seeds if seed not in results.get(row.key, {}))
            if todo:
                plans.append(Plan(row.settings, todo, self.runs, device, parallel))
        return plans, problems

    def rows(self) -> list[dict[str, str]]:
        """The table as text cells."""
        if self.table.name == TIMING_TABLE:
            return timing_rows(self.table.rows, [self.runs, self.kept])
        return comparison_rows(self.table, finished_results([self.kept, self.runs])[0])


def finished_results(roots: Iterable[Path]) -> tuple[dict[ResultKey, dict[int, RunResult]], list[str]]:
    """The results of finished runs below these folders, and a sentence for each run that cannot be read.

    If several folders have the same settings and seed, the first one counts.
    """
    found: dict[ResultKey, dict[int, RunResult]] = {}
    problems: list[str] = []
    for root in roots:
        runs, unreadable = readable_runs(root)
        problems += unreadable
        for run in runs:
            try:
                contents = run.read()
            except RunError as error:
                problems.append(str(error))
                continue
            if contents.result is not None:
                found.setdefault((run.benchmark, run.method, contents.digest), {}).setdefault(run.seed, contents.result)
    return found, problems


def keep(runs: Path, target: Path) -> tuple[str, list[str]]:
    """Copies the small files of finished runs and all measured times to `target`.

    Returns a message about the copies, and a sentence for each run that cannot be read.
    """
    if not runs.is_dir():
        raise RunError(f"There is no folder {runs} with runs to keep. Name it with --runs.")
    if target.exists() and target.samefile(runs):
        raise RunError(f"The runs are already in {runs}. Name another folder to keep them in.")
    readable, problems = readable_runs(runs)
    finished = [run for run in readable if run.finished]
    for run in finished:
        keep_results(run, target)
    timed = keep_timings(runs, target)
    if not (finished or timed or problems):
        raise RunError(
            f"No run in {runs} is finished, so nothing was kept. Name another folder with --runs, or resume the runs."
        )
    times = f" and the times of {timed} benchmark(s)" if timed else ""
    return f"Kept {len(finished)} run(s){times} in {target}.", problems
