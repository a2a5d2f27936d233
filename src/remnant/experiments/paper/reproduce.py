"""A table of the paper from runs: which are missing, and ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from remnant.data.errors import did_you_mean

from ..execute.plan import Plan
from ..runs.folder import RunError, readable_runs
from ..settings.resolve import SettingsError
from .tables import Result, ResultKey, Row, Table, load, render


@dataclass(frozen=True)
class Choice:
    """A table, or some of its rows."""

    table: str
    methods: Sequence[str] = ()
    benchmarks: Sequence[str] = ()

    def load(self) -> Table:
        whole = load(self.table)
        _known("benchmark", self.benchmarks, {row.benchmark for row in whole.rows}, self.table)
        _known("method", self.methods, {row.method for row in whole.rows}, self.table)
        return replace(whole, rows=tuple(row for row in whole.rows if self._wanted(row)))

    def to_run(self) -> list[Row]:
        return self.load().to_run(self.methods)

    def _wanted(self, row: Row) -> bool:
        return (not self.benchmarks or row.benchmark in self.benchmarks) and (
            not self.methods or row.method in self.methods
        )


def _known(kind: str, names: Iterable[str], known: set[str], table: str) -> None:
    for name in names:
        if name not in known:
            raise SettingsError(f"{table} has no {kind} '{name}'. {did_you_mean(name, known)}")


Finished = dict[ResultKey, list[Result]]


def finished(roots: Iterable[Path]) -> tuple[Finished, list[str]]:
    """What finished runs below these folders measured; the first folder that has a seed counts.

    And what is wrong with those that cannot be read, a sentence each.
    """
    found: Finished = {}
    troubles: list[str] = []
    for root in roots:
        runs, unreadable = readable_runs(root)
        troubles += unreadable
        for run in runs:
            try:
                result = run.result()
            except RunError as error:
                troubles.append(str(error))
                continue
            key = (run.benchmark, run.method, run.digest)
            if result is None or run.seed in {known.seed for known in found.get(key, [])}:
                continue
            found.setdefault(key, []).append(
                Result(
                    run.seed,
                    acc=result["acc"],
                    bwt=result["bwt"],
                    seconds=sum(result["seconds"].values()),
                    capacity=result["capacity"],
                )
            )
    return found, troubles


def missing(
    choice: Choice, seeds: Sequence[int], known: Finished, device: str, parallel: int, root: Path
) -> list[Plan]:
    """Plans for the seeds of each row that nothing is known of."""
    plans = []
    for row in choice.to_run():
        have = {result.seed for result in known.get(row.key, [])}
        todo = tuple(seed for seed in seeds if seed not in have)
        if todo:
            plans.append(Plan(row.settings, todo, root, device, parallel))
    return plans


def rows(choice: Choice, known: Finished) -> list[dict[str, str]]:
    return render(choice.load(), known)
