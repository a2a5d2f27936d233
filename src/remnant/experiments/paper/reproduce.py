"""Reproduces the paper's tables: finds the missing runs, and shows our results beside the paper's."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from remnant.errors import RunError
from remnant.files import read_json

from ..execute import HERE, Plan, pick_devices
from ..runs import RunResult, keep_results, readable_runs
from .tables import ResultKey, Row, Table, table_rows
from .timing import TIMES_FOLDER, TIMING_TABLE, load_timings, save_timings, time_methods, timing_rows

TimingJob = Callable[[Callable[[str], None]], None]  # takes a function that prints a line


class Reproduction:
    """One table of the paper: the missing work, and the rows to print.

    `runs` is the folder of runs, and `kept` the folder of finished results, which takes precedence.
    """

    def __init__(self, table: Table, runs: Path, kept: Path) -> None:
        self.table, self.runs, self.kept = table, runs, kept

    def missing(
        self, seeds: Sequence[int], device: str, parallel: int, on: str
    ) -> tuple[list[Plan | TimingJob], list[str]]:
        """A plan for the missing seeds of each row, and a sentence for each run that cannot be read.

        Table 2 is always measured again, with one job per benchmark.
        """
        rows = [row for row in self.table.rows if row.runnable]
        if self.table.name == TIMING_TABLE:
            if on != HERE:
                raise RunError(f"--on {on}: times are measured in one process on this machine. Leave out --on.")
            pick_devices(device)  # fails once, and not for every benchmark
            groups: dict[str, list[Row]] = {}
            for row in rows:
                groups.setdefault(row.benchmark, []).append(row)
            return [partial(time_methods, group, device, self.runs) for group in groups.values()], []
        results, problems = finished_results([self.kept, self.runs])
        plans: list[Plan | TimingJob] = []
        for row in rows:
            if todo := tuple(seed for seed in seeds if seed not in results.get(row.key, {})):
                plans.append(Plan(row.settings, todo, self.runs, device, parallel, on=on))
        return plans, problems

    def rows(self) -> list[dict[str, str]]:
        """The table as text cells."""
        if self.table.name == TIMING_TABLE:
            return timing_rows(self.table.rows, [self.runs, self.kept])
        return table_rows(self.table, finished_results([self.kept, self.runs])[0])


def finished_results(roots: Iterable[Path]) -> tuple[dict[ResultKey, dict[int, RunResult]], list[str]]:
    """The results of finished runs, from the first folder that has them, and a sentence for each unreadable run."""
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
    """Copies finished runs' small files and all times; returns a message, and a sentence for each unreadable run."""
    if not runs.is_dir():
        raise RunError(f"There is no folder {runs} with runs to keep. Name it with --runs.")
    if target.exists() and target.samefile(runs):
        raise RunError(f"The runs are already in {runs}. Name another folder to keep them in.")
    if target.is_file():
        raise RunError(f"{target} is a file. Name a folder to keep the runs in.")
    readable, problems = readable_runs(runs)
    finished, timed = [], []
    for run in readable:
        try:
            if run.finished and run.read():
                finished.append(keep_results(run, target))
        except RunError as error:
            problems.append(str(error))
    for path in (runs / TIMES_FOLDER).glob("*.json"):
        try:
            load_timings([runs], path.stem)
            save_timings(target, path.stem, read_json(path) or {})
            timed.append(path)
        except RunError as error:
            problems.append(str(error))
    if not (finished or timed or problems):
        raise RunError(
            f"No run in {runs} is finished, so nothing was kept. Name another folder with --runs, or resume the runs."
        )
    times = f" and the times of {', '.join(path.stem for path in timed)}" if timed else ""
    return f"Kept {len(finished)} run{'s' * (len(finished) != 1)}{times} in {target}.", problems
