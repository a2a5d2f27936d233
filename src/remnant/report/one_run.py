"""One run in words and tables: where its settings come from, its curves, its ranks, and what to be careful about."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import isfinite
from pathlib import Path

from remnant.errors import RunError
from remnant.evaluation import Spread
from remnant.experiments.runs import RunFolder, check_files, is_being_written, run_folders

from .comparison import MEASURES, Measure
from .records import Reading, RunRecord, read_run
from .variants import NAMES, Variant, collect, flatten

Rows = list[dict[str, str]]
BARS = "▁▂▃▄▅▆▇█"
WIDEST = 30  # letters of a curve
CURVES = {"loss": ("loss", 1.0, 3), "validation accuracy %": ("valid_accuracy", 100.0, 1)}
SWITCHES = {"deterministic": ("--deterministic", False), "tf32": ("--no-tf32", True)}


@dataclass(frozen=True)
class OneRun:
    """A run folder and everything that was measured in it."""

    record: RunRecord
    variant: Variant

    @cached_property
    def under_way(self) -> bool:
        """Whether a process is writing to it now."""
        return self.record.result is None and is_being_written(self.record.folder.path)

    @property
    def state(self) -> str:
        return "finished" if self.record.result else "under way" if self.under_way else "unfinished"

    @property
    def id(self) -> str:
        """Its name in the address of the page."""
        return f"{self.variant.id}/{self.record.seed}"

    @property
    def command(self) -> str:
        """The command that makes the run again; empty if no recipe leads to its settings."""
        if not (command := self.variant.command([self.record.seed])):
            return ""
        execution = self.record.folder.execution() or {}
        switches = [switch for name, (switch, usual) in SWITCHES.items() if execution.get(name, usual) != usual]
        steps = execution.get("steps", "auto")
        return " ".join([command, *switches, *([] if steps == "auto" else [f"--steps {steps}"])])

    def text(self, measure: Measure) -> str:
        """A figure of the run; a dash if the run is unfinished."""
        return measure.text(Spread(measure.of(self.record) if self.record.result else None)).replace("-", "−")

    def settings(self) -> Rows:
        """Every setting of the run, and whether it comes from the recipe or was changed."""
        changes = self.variant.changes
        changed = {change.partition("=")[0] for change in changes or ()}
        rows = []
        for key, value in flatten(self.record.settings):
            source = "" if changes is None or key in NAMES else "changed" if key in changed else "recipe"
            rows.append({"setting": key, "value": value, "from": source})
        return rows

    def environment(self) -> Rows:
        facts = flatten({key: value for key, value in self.record.environment.items() if key != "before"})
        return [{"environment": key, "value": value} for key, value in facts]

    def results(self) -> Rows:
        """The figures of a finished run."""
        if self.record.result is None:
            return []
        parts = {f"{part} s": Spread(seconds).text(1) for part, seconds in self.record.result.seconds.items()}
        values = {m.heading: m.text(Spread(m.of(self.record))) for m in MEASURES.values() if m.heading != "time s"}
        return [values | parts]

    def curves(self) -> Rows:
        """A line of text for each task, with the loss and the validation accuracy by epoch."""
        rows = []
        for task, lines in groupby(self.record.metrics, key=lambda line: line["task"]):
            epochs = list(lines)
            row = {"task": str(task + 1), "epochs": str(len(epochs))}
            for heading, (key, scale, places) in CURVES.items():
                row[heading] = curve([line.get(key) for line in epochs], scale, places)
            rows.append(row)
        return rows

    def ranks(self) -> Rows:
        """The directions that each task added to each layer, their sum, and the layer's capacity."""
        rows = []
        for layer, added in self.record.ranks.items():
            tasks = {f"task {task + 1}": str(count) for task, count in enumerate(added)}
            capacity = str(self.variant.capacities.get(layer, ""))
            rows.append({"layer": layer, **tasks, "total": str(sum(added)), "capacity": capacity})
        names = dict.fromkeys(name for row in rows for name in row)
        return [{name: row.get(name, "") for name in names} for row in rows]

    def warnings(self) -> Iterator[str]:
        """What a reader of the result should know, and the present state of the run and of the user's own files."""
        yield from self.record.remarks
        if self.under_way:
            yield f"A process is writing to it; {self.record.progress}."
        elif self.record.result is None:
            yield f"It is unfinished: {self.record.progress}. remnant resume {self.record.folder.path} continues it."
        try:
            check_files(self.record.folder)
        except RunError as error:
            yield str(error)
        yield from self.lasting_warnings()

    def lasting_warnings(self) -> Iterator[str]:
        """What a reader of the result should know, read from the run's own files alone."""
        environment = self.record.environment
        if environment.get("modified"):
            yield "Remnant's code had changes that were not committed, so the commit does not identify it."
        if before := [str(each.get("commit") or each.get("remnant"))[:12] for each in environment.get("before", [])]:
            yield f"It was started with another version of the code ({', '.join(before)}), so the result mixes two versions."
        for layer, added in self.record.ranks.items():
            if sum(added) == self.variant.capacities.get(layer):
                yield f"The memory of {layer} is full: the layer can learn nothing more."
        if lost := sorted({line["task"] + 1 for line in self.record.metrics if line.get("loss") is None}):
            yield f"The loss was not finite in task {', '.join(map(str, lost))}."


def open_run(path: Path) -> OneRun:
    """Reads the run at `path`, or the only one below it; RunError if there is none, or if a file is damaged."""
    below = run_folders(path) if path.is_dir() else []
    folder = RunFolder.open(below[0] if len(below) == 1 else path)
    record = read_run(folder.path, str(folder.path))
    (variant,) = collect(Reading((record,), (), (), {})).variants
    return OneRun(record, variant)


def curve(values: Sequence[float | None], scale: float = 1.0, places: int = 3) -> str:
    """A curve as text, with its first and last value: `█▅▂▁ 1.21 → 0.03`. An epoch without a value is a space.

    >>> curve([4.0, 2.0, 1.0], places=0)
    '█▃▁ 4 → 1'
    """
    step = -(-len(values) // WIDEST) or 1
    shown = [*values[:-1:step], *values[-1:]]
    finite = [value for value in shown if value is not None and isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    bars = "".join(
        " " if value is None else BARS[round((value - low) / (high - low) * 7) if high > low else 0] for value in shown
    )
    first, last = (f"{scale * value:.{places}f}" for value in (finite[0], finite[-1]))
    return f"{bars} {first} → {last}"
