"""Searches for settings with Optuna, by the accuracy on validation sets. Each trial is a run; the list of trials is a file."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from statistics import mean
from typing import Any

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
        self.space = dict(self._distribution(text) for text in over)
        try:
            for end in (0, -1):  # both ends must be values that the settings take
                base = plan([f"{key}={_ends(each)[end]}" for key, each in self.space.items()])
        except OptionError as error:
            raise OptionError(str(error).replace("--set", "--over")) from None
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
                    self.trials += [{"values": values} for values in self._suggest(number)]
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
                self.trials = (read_json(self.path) or {}).get("trials", [])
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
        """New values from all results so far. The seed makes a continued search take the path of one that never stopped."""
        create, sampler = self.optuna.trial.create_trial, self.optuna.samplers.TPESampler(seed=len(self.trials))
        study = self.optuna.create_study(direction="maximize", sampler=sampler)
        for trial in self.ranking():
            params = {key: _number(each, trial["values"][key]) for key, each in self.space.items()}
            study.add_trial(create(params=params, distributions=self.space, value=trial["validation_acc"]))
        asked = [study.ask(self.space).params for _ in range(number)]
        return [{key: _text(self.space[key], value) for key, value in params.items()} for params in asked]

    def _distribution(self, text: str) -> tuple[str, Any]:
        """Reads one `--over`."""
        key, equals, values = (part.strip() for part in text.partition("="))
        kinds = self.optuna.distributions
        try:
            if not key or not equals:
                raise ValueError("a key and its values are missing")
            if match := re.fullmatch(RANGE, values):
                whole = all(re.fullmatch(r"-?\d+", match[end]) for end in ("low", "high"))
                number, kind = (int, kinds.IntDistribution) if whole else (float, kinds.FloatDistribution)
                return key, kind(number(match["low"]), number(match["high"]), log=bool(match["log"]))
            return key, kinds.CategoricalDistribution([value for value in split_values(values) if value])
        except ValueError as error:
            raise OptionError(
                f"--over {text}: {str(error).rstrip('.')}. Write lr=0.001..0.1:log, samples=50..300 or rank_rule=a,b."
            ) from None


def _changes(trial: Mapping[str, Any]) -> list[str]:
    """The values of a trial as overrides: `["lr=0.01"]`."""
    return [f"{key}={value}" for key, value in trial["values"].items()]


def _ends(distribution: Any) -> Sequence[Any]:
    return getattr(distribution, "choices", None) or (distribution.low, distribution.high)


def _number(distribution: Any, text: str) -> Any:
    return text if hasattr(distribution, "choices") else type(distribution.low)(text)


def _text(distribution: Any, value: Any) -> str:
    if isinstance(value, float):  # rounding must not leave the range
        value = min(max(float(f"{value:.{DIGITS}g}"), distribution.low), distribution.high)
    return str(value)
