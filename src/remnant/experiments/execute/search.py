"""Searches for settings with Optuna, by the accuracy on validation sets. Each trial is a run, and a file lists all trials."""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from statistics import mean
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from remnant.data import load_stream
from remnant.errors import RunError
from remnant.files import explained, read_json, write_json
from remnant.lazy import import_extra
from remnant.options import OptionError

from ..runs import folder_name
from .launch import Plan
from .sweep import RANGE, finished_runs, split_values

ROUNDS = 10  # the trials of a round run together, so a search takes the same path on one core and on a cluster
FAILURES = 5  # in a row that end a search
DIGITS = 4  # of a value that the search chooses: people read and type it
TRIES = 100  # to find values that no trial has had; a small range may have no others


class Over(NamedTuple):
    """One `--over`: the values to choose among, or the two ends of a range. `text` is all of it."""

    text: str
    values: list[str]
    is_range: bool
    log: bool


class Search:
    """A search over settings, on the mean validation accuracy of the seeds.

    Args:
        over: `key=low..high`, `key=low..high:log` or `key=value,value,…`, one for each setting.
        plan: gives the plan for overrides such as `["lr=0.01"]`.

    Raises:
        OptionError: for a range that cannot be read, or a value that a setting does not take.
        RunError: if Optuna is missing, or the stream has no validation sets.
    """

    def __init__(self, over: Sequence[str], plan: Callable[[Sequence[str]], Plan]) -> None:
        self.optuna = import_extra("optuna", "--search")
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self.plan = plan
        written = _read(over)
        try:
            for turn in range(max(len(each.values) for each in written.values())):  # the settings must take all values
                base = plan([f"{key}={each.values[turn % len(each.values)]}" for key, each in written.items()])
        except OptionError as error:
            raise OptionError(str(error).replace("--set", "--over")) from None
        self.space = {key: self._distribution(key, written) for key in written}
        stream = load_stream(base.settings.benchmark, seed=base.seeds[0], **base.settings.stream)
        if not all(len(task.valid) for task in stream):
            raise RunError(
                f"--search chooses by validation accuracy, but tasks of {base.settings.benchmark} have no validation set. "
                "Hold out some training examples with --set stream.valid=0.1, if the stream has that option."
            )
        identity = repr((plan([]).settings.digest, sorted(over), base.seeds))
        folder = base.root / folder_name(base.settings.benchmark) / folder_name(base.settings.method)
        self.path = folder / f"search-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.json"
        self.over, self.trials = list(over), list[dict[str, Any]]()

    def rounds(self, count: int) -> Iterator[dict[str, Plan]]:
        """Yields the plans of one round after another by their names, until there are `count` trials. The caller runs them."""
        with self._opened():
            while len(self.trials) < count or self._pending():
                if not self._pending():
                    number = min(max(1, count // ROUNDS), count - len(self.trials))
                    if not (suggested := self._suggest(number)):
                        return
                    self.trials += [{"values": values} for values in suggested]
                    self._save()  # before they run, so that the same trials continue after a kill
                pending = [_changes(trial) for trial in self._pending()]
                yield {" ".join(changes): self.plan(changes) for changes in pending}
                self._take_results()

    def ranking(self) -> list[dict[str, Any]]:
        """The trials with a result, the best first."""
        return sorted(
            (t for t in self.trials if t.get("validation_acc") is not None), key=lambda t: -t["validation_acc"]
        )

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.path.with_suffix(".lock"), timeout=0):
                self.trials = (read_json(self.path, "Remove the file to search again") or {}).get("trials", [])
                yield
        except Timeout:
            raise RunError(
                f"Another process is running this search ({self.path}). Wait for it to finish, or stop it."
            ) from None

    def _save(self) -> None:
        write_json(self.path, {"over": self.over, "trials": self.trials})

    def _pending(self) -> list[dict[str, Any]]:
        return [trial for trial in self.trials if "validation_acc" not in trial]

    def _take_results(self) -> None:
        """Notes the validation accuracy of each trial of the round, and None for one that failed."""
        for trial in self._pending():
            plan = self.plan(_changes(trial))
            accs: list[Any] = [(run.result() or {}).get("validation_acc") for run in finished_runs(plan)]
            whole = len(accs) == len(plan.seeds) and None not in accs
            trial["validation_acc"] = mean(accs) if whole else None
        failed = list(takewhile(lambda trial: trial["validation_acc"] is None, reversed(self.trials)))
        if len(failed) >= FAILURES:  # a full disk, a missing file: most likely not the fault of these values
            for trial in failed:
                del trial["validation_acc"]
            reason = "Fix the cause or search a smaller range, then repeat the command to try them again."
            raise RunError(f"The last {len(failed)} trials failed. {reason}")
        self._save()

    def _suggest(self, number: int) -> list[dict[str, str]]:
        """Returns up to `number` new values, chosen by all results so far.

        The seed makes a continued search take the path of one that never stopped.
        """
        create, sampler = self.optuna.trial.create_trial, self.optuna.samplers.TPESampler(seed=len(self.trials))
        study = self.optuna.create_study(direction="maximize", sampler=sampler)
        for trial in self.ranking():
            params = {key: _number(each, trial["values"][key]) for key, each in self.space.items()}
            study.add_trial(create(params=params, distributions=self.space, value=trial["validation_acc"]))
        tried, found = [trial["values"] for trial in self.trials], list[dict[str, str]]()
        for _ in range(number + TRIES):
            values = {key: _text(self.space[key], value) for key, value in study.ask(self.space).params.items()}
            if len(found) < number and values not in tried + found:
                found.append(values)
        return found

    def _distribution(self, key: str, written: Mapping[str, Over]) -> Any:
        kinds, over = self.optuna.distributions, written[key]
        if not over.is_range:
            return kinds.CategoricalDistribution(over.values)
        if self._is_whole(key, written):
            return kinds.IntDistribution(*map(int, over.values), log=over.log)
        return kinds.FloatDistribution(*map(float, over.values), log=over.log)

    def _is_whole(self, key: str, written: Mapping[str, Over]) -> bool:
        """Whether the setting takes whole numbers only. Without a type, this depends on how the ends are written."""

        def takes(value: str) -> bool:
            others = [f"{other}={each.values[0]}" for other, each in written.items() if other != key]
            with suppress(OptionError):
                return bool(self.plan([*others, f"{key}={value}"]))
            return False

        low, high = map(float, ends := written[key].values)
        written_whole = all(re.fullmatch(r"[-+]?\d+", end) for end in ends)
        return written_whole and (not takes(repr(low + (high - low) / math.pi)) or takes("true"))


def _read(over: Sequence[str]) -> dict[str, Over]:
    """Reads each `--over`, by the name of its setting."""
    found: dict[str, Over] = {}
    for text in over:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise _unreadable(text, "a key and its values are missing")
        if key in found:
            raise OptionError(f"--over {found[key].text} --over {text}: {key} is given twice. Give it once.")
        match = re.fullmatch(RANGE, values)
        chosen = list(match.groups()[:2]) if match else [value for value in split_values(values) if value]
        log = bool(match and match[3])
        if not chosen:
            raise _unreadable(text, "its values are missing")
        if match and float(chosen[0]) > float(chosen[1]):
            raise _unreadable(text, "the first end of the range is above the second")
        if log and float(chosen[0]) <= 0:
            raise _unreadable(text, ":log searches orders of magnitude, so both ends must be above 0")
        found[key] = Over(text, chosen, bool(match), log)
    return found


def _unreadable(text: str, reason: str) -> OptionError:
    return OptionError(f"--over {text}: {reason}. Write lr=0.001..0.1:log, samples=50..300 or rank_rule=a,b.")


def _changes(trial: Mapping[str, Any]) -> list[str]:
    """The values of a trial as overrides: `["lr=0.01"]`."""
    return [f"{key}={value}" for key, value in trial["values"].items()]


def _number(distribution: Any, text: str) -> Any:
    return text if hasattr(distribution, "choices") else type(distribution.low)(text)


def _text(distribution: Any, value: Any) -> str:
    if isinstance(value, float):  # rounding must not leave the range
        value = min(max(float(f"{value:.{DIGITS}g}"), distribution.low), distribution.high)
    return str(value)
