"""Whole runs with faults: kills at random moments, damaged checkpoints, a full disk, two processes on one run."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("typer")
from typer.testing import CliRunner

from remnant.cli import app
from remnant.experiments.runs import RunFolder, find_runs
from remnant.experiments.settings import resolve

runner = CliRunner()
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# A network with everything that has a state: dropout draws random numbers, norms keep running statistics, heads change.
PICTURES = """
import torch
from remnant.data import Stream

def stream(seed):
    g = torch.Generator().manual_seed(seed)
    x = [torch.randn(90, 1, 19, 19, generator=g) for _ in range(3)]
    return Stream.from_arrays([(x, x.flatten(1)[:, :3].argmax(1)) for x in x], test=0.3, valid=0.2)
"""

EPOCHS = "training.epochs=4"
DIGITS = ("stream.tasks=3", "training.batch=20")
PICTURE_NET = ("network.name=alexnet", "network.width=2", "network.dropout=[0.2,0.5]", "training.batch=10")
FEW, ALEXNET = (*DIGITS, EPOCHS), (*PICTURE_NET, EPOCHS)
STOPPING = ("training.epochs=8", "training.patience=1", "training.factor=3", "training.lr_min=0.005")


@dataclass(frozen=True)
class Case:
    method: str
    overrides: tuple[str, ...] = FEW
    own: bool = False

    def order(self, root: Path) -> dict[str, Any]:
        benchmark = f"{root.parent / 'own.py'}:stream" if self.own else "permuted-digits"
        return {"benchmark": benchmark, "method": self.method, "overrides": self.overrides, "root": str(root)}


CASES = {
    "gpm": Case("gpm"),
    "gpm with early stopping": Case("gpm", (*DIGITS, *STOPPING)),
    "gpm on an AlexNet": Case("gpm", ALEXNET, own=True),
    "gpm on an AlexNet that normalises by the batch": Case("gpm", (*ALEXNET, "network.norm=batch"), own=True),
    "finetune": Case("finetune"),
    "single-task": Case("single-task"),
    "multitask": Case("multitask"),
    "multitask with early stopping and heads": Case("multitask", (*PICTURE_NET, *STOPPING), own=True),
    "ewc on an AlexNet that normalises by the batch": Case("ewc", (*ALEXNET, "network.norm=batch"), own=True),
    "si with early stopping": Case("si", (*DIGITS, *STOPPING)),
    "mas on an AlexNet": Case("mas", ALEXNET, own=True),
    "icarl with early stopping": Case("icarl", (*PICTURE_NET, *STOPPING), own=True),
    "hat with early stopping": Case("hat", (*PICTURE_NET, *STOPPING), own=True),
    "packnet": Case("packnet", (*ALEXNET, "retrain=2"), own=True),
    "space": Case("space", (*ALEXNET, "retrain=2", "threshold=0.7"), own=True),
    "dgr": Case("dgr", (*FEW, "hidden=[20]")),
    "dgdmn": Case("dgdmn", (*DIGITS, "training.epochs=2", "hidden=[20]", "slots=2", "samples=50", "sleep=1")),
    "ogd": Case("ogd", (*FEW, "network.hidden=[20, 20]", "samples=20")),
    "owm on an AlexNet": Case("owm", (*ALEXNET, "alpha_decay=0.01"), own=True),
    "remnant-recall": Case("remnant-recall", (*FEW, "retrain=2", "own_rank=2")),
}
# Their state has the same kinds of parts as that of another case; every method's state is tested in tests/methods.
ALIKE = (
    "gpm on an AlexNet",
    "finetune",
    "single-task",
    "multitask with early stopping and heads",
    "ewc on an AlexNet that normalises by the batch",
    "si with early stopping",
    "mas on an AlexNet",
    "hat with early stopping",
    "dgr",
    "ogd",
    "owm on an AlexNet",
)

# A process that has imported everything once and forks a child for each run: a kill costs milliseconds, not an import.
FORKS = """
import json, os, signal, sys, tempfile, torch
from pathlib import Path
from remnant.experiments.execute import Plan, run as run_plan
from remnant.experiments.settings import resolve
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as root:  # whatever is set up on first use
    few = resolve("permuted-digits", "gpm", ("stream.tasks=2", "training.epochs=1"))
    run_plan(Plan(few, (0,), Path(root), "cpu", deterministic=True), lambda progress: None)

def watch(progress, until):
    if progress.note:
        say("note", progress.note)
    if until and progress.epoch and [progress.task, progress.epoch.epoch] == until:
        os.kill(os.getpid(), signal.SIGKILL)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

say("up")

for line in iter(sys.stdin.readline, ""):
    order = json.loads(line)
    child = os.fork()
    if not child:
        try:
            settings = resolve(order["benchmark"], order["method"], order["overrides"])
            plan = Plan(settings, (0,), Path(order["root"]), "cpu", deterministic=True,
                        checkpoint_every=order["checkpoint_every"], checkpoint_seconds=0.0)
            say("ready", os.getpid())
            run_plan(plan, lambda progress: watch(progress, order["until"]))
            say("finished")
            if order["stay"]:  # so that its number is still its own when the kill comes
                signal.pause()
        except BaseException as error:
            say("failed", repr(error))
        os._exit(0)
    os.waitpid(child, 0)
    say("ended")
"""


class Forks:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # so that it and its child can be ended together, whatever a test left them in
        )
        assert self.line() == "up"
        self.finished: dict[Case, dict[str, Any]] = {}

    def start(
        self,
        case: Case,
        root: Path,
        stay: bool = False,
        until: tuple[int, int] | None = None,
        checkpoint_every: int = 1,
    ) -> int:
        if case.own:
            (root.parent / "own.py").write_text(PICTURES)
        assert self.process.stdin
        order = {**case.order(root), "stay": stay, "until": until, "checkpoint_every": checkpoint_every}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        word, _, pid = self.line().partition(" ")
        assert word == "ready", pid
        return int(pid)

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[bool, list[str]]:
        """Once the child has ended: whether it finished its run, and its notes."""
        said = list(iter(self.line, "ended"))
        assert not [line for line in said if line.startswith("failed")], said
        return "finished" in said, [line for line in said if line.startswith("note")]

    def whole(self, case: Case, root: Path) -> tuple[RunFolder, list[str]]:
        self.start(case, root)
        finished, notes = self.end()
        assert finished
        (run,) = find_runs(root)
        return run, notes

    def unbroken(self, case: Case, folder: Path) -> dict[str, Any]:
        """The outcome of a run without faults, which is made once for all tests."""
        if case not in self.finished:
            self.finished[case] = outcome(self.whole(case, folder / "unbroken")[0])
        return self.finished[case]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    os.killpg(forks.process.pid, signal.SIGKILL)
    forks.process.communicate()


def outcome(run: RunFolder) -> dict[str, Any]:
    """Everything except times: a killed and resumed run must have the same as an unbroken one."""
    result = run.result()
    assert result is not None
    lines = [{name: repr(value) for name, value in line.items() if name != "seconds"} for line in run.metrics()]
    return {
        "accuracy": (run.path / "accuracy.csv").read_bytes(),
        "ranks": run.ranks(),
        "metrics": lines,  # NaN is no equal of itself: as text
        "result": {name: repr(value) for name, value in result.items() if name != "seconds"},
        "files": sorted(path.name for path in run.path.iterdir()),
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in ALIKE else []) for name in CASES]
)
def test_killed_at_random_moments_it_ends_like_an_unbroken_run(name: str, tmp_path: Path, forks: Forks) -> None:
    """Some kills come before the first checkpoint, some while one is written; all cases together have over thirty."""
    case, moments = CASES[name], random.Random(name)
    start = time.perf_counter()
    unbroken = outcome(forks.whole(case, tmp_path / "unbroken")[0])
    took = time.perf_counter() - start
    kills, resumed, rounds = 0, 0, 0
    while kills < 3 or resumed < 1:
        rounds += 1
        assert rounds < 50
        root, finished = tmp_path / f"broken{rounds}", False
        while not finished:
            pid = forks.start(case, root, stay=True)
            time.sleep(moments.uniform(0, took))
            os.kill(pid, signal.SIGKILL)
            finished, notes = forks.end()
            kills += not finished
            resumed += any("resumed at" in note for note in notes)
            assert not any("damaged" in note for note in notes)
        (broken,) = find_runs(root)
        assert outcome(broken) == unbroken
        assert broken.execution() == {
            "deterministic": True,
            "tf32": True,
            "steps": "auto",
            "checkpoint_every": 1,
            "drift": False,
        }


@pytest.mark.parametrize("method", ["trgp", "cuber", "dftrgp", "code-cl", "api"])
def test_killed_with_no_checkpoint_since_the_last_task_it_ends_like_an_unbroken_run(
    method: str, tmp_path: Path, forks: Forks
) -> None:
    """What these methods keep for each task is read when the state is loaded."""
    case = Case(method, ("stream.tasks=4", "training.batch=20", "training.epochs=1", "samples=50"))
    unbroken = forks.unbroken(case, tmp_path)
    forks.start(case, tmp_path / "broken", until=(3, 1), checkpoint_every=0)
    assert not forks.end()[0]
    broken, notes = forks.whole(case, tmp_path / "broken")
    assert any("resumed at" in note for note in notes)
    assert outcome(broken) == unbroken


def test_a_line_of_metrics_for_every_epoch_in_order(tmp_path: Path, forks: Forks) -> None:
    run, _ = forks.whole(CASES["gpm"], tmp_path / "runs")
    assert [(line["task"], line["epoch"]) for line in run.metrics()] == [(t, e) for t in range(3) for e in range(1, 5)]


def cut_off(case: Case, root: Path, forks: Forks) -> RunFolder:
    """A run that is killed in the middle of its second task."""
    forks.start(case, root, until=(1, 3))
    finished, _ = forks.end()
    assert not finished
    (run,) = find_runs(root)
    return run


@pytest.mark.parametrize("spoilt", ["newest", "all"])
def test_a_damaged_checkpoint_is_named_and_changes_nothing(spoilt: str, tmp_path: Path, forks: Forks) -> None:
    unbroken = forks.unbroken(CASES["gpm"], tmp_path)
    run = cut_off(CASES["gpm"], tmp_path / "broken", forks)
    checkpoints = sorted(run.path.glob("checkpoint-*"), reverse=True)
    for path in checkpoints[: 1 if spoilt == "newest" else None]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    done, notes = forks.whole(CASES["gpm"], tmp_path / "broken")
    assert f"{checkpoints[0]} is damaged: " in notes[0]
    assert "checksum" in notes[0]
    expected = (
        "Continuing from the previous one"
        if spoilt == "newest"
        else "No complete checkpoint is left: the run starts again"
    )
    assert expected in notes[0]
    assert outcome(done) == unbroken


# --- through the command line -----------------------------------------------------------------------------------------


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "remnant", *map(str, words)]


def options(case: Case) -> list[str]:
    return [word for override in case.overrides for word in ("--set", override)]


@contextmanager
def spawned(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A command, which is killed at the end of the block."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command(*words), **pipes, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)  # its children hold its pipes: this ends with the last of them


def wait_for(condition: Any, seconds: float = 150) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


LONGER = Case("gpm", ("stream.tasks=3", "training.epochs=40", "training.batch=10"))


@pytest.mark.parametrize("way", ["run", "resume"])
def test_killed_between_its_result_and_cleaning_up_the_rest_is_cleaned_up(
    way: str, tmp_path: Path, forks: Forks
) -> None:
    run, _ = forks.whole(CASES["finetune"], tmp_path / "runs")
    whole = outcome(run)
    run.save_checkpoint({"task": 3})
    words = ["run", "permuted-digits", "finetune", *options(CASES["finetune"]), "--device", "cpu", "--runs"]
    result = runner.invoke(app, [*(words if way == "run" else ["resume"]), str(tmp_path / "runs")])
    assert result.exit_code == 0, result.output
    assert outcome(run) == whole


def test_remnant_resume_after_kill_9_continues_in_the_same_way(tmp_path: Path, forks: Forks) -> None:
    unbroken = forks.unbroken(LONGER, tmp_path)
    runs = tmp_path / "runs"
    with spawned("run", "permuted-digits", "gpm", *options(LONGER), "--deterministic", "--runs", runs):
        wait_for(lambda: list(runs.rglob("checkpoint-*")))
    (run,) = find_runs(runs)
    assert not run.finished
    assert run.execution() == {
        "deterministic": True,
        "tf32": True,
        "steps": "auto",
        "checkpoint_every": 20,
        "drift": False,
    }
    result = runner.invoke(app, ["resume", str(runs), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "resumed at task 2" in result.stderr
    assert torch.are_deterministic_algorithms_enabled()
    assert {**outcome(run), "files": []} == {**unbroken, "files": []}
    again = runner.invoke(app, ["resume", str(runs)])
    assert again.exit_code == 0
    assert "Nothing to resume" in again.output


def test_a_killed_command_ends_the_processes_of_its_seeds(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with spawned("run", "permuted-digits", "gpm", *options(LONGER), "--seeds", 2, "--runs", runs):
        wait_for(lambda: len({path.parent for path in runs.rglob("checkpoint-*")}) == 2)
    found = find_runs(runs)
    assert [run.finished for run in found] == [False, False]
    for run in found:
        with run.lock():
            pass


def test_resume_can_change_the_execution(tmp_path: Path, forks: Forks) -> None:
    run = cut_off(CASES["gpm"], tmp_path / "runs", forks)
    words = ["resume", str(run.path), "--device", "cpu", "--no-deterministic", "--checkpoint-every", "7", "-q"]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert run.execution() == {
        "deterministic": False,
        "tf32": True,
        "steps": "auto",
        "checkpoint_every": 7,
        "drift": False,
    }
    assert not torch.are_deterministic_algorithms_enabled()
    assert run.finished


def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path, forks: Forks) -> None:
    unbroken = forks.unbroken(CASES["gpm"], tmp_path)
    run = cut_off(CASES["gpm"], tmp_path / "runs", forks)
    pid = forks.start(CASES["gpm"], tmp_path / "runs", stay=True)
    lock = run.path / ".lock"
    wait_for(lambda: lock.read_text().startswith(f"{pid} "))
    os.kill(pid, signal.SIGSTOP)
    result = runner.invoke(app, ["resume", str(run.path)])
    assert result.exit_code == 1
    assert f"is being written by process {pid}. Wait for it to finish" in result.stderr
    assert "Traceback" not in result.output
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: run.finished and not lock.read_text())
    os.kill(pid, signal.SIGKILL)
    assert forks.end()
    assert outcome(run) == unbroken


@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "The disk is full"), (errno.EROFS, "cannot be accessed")])
@pytest.mark.parametrize("good", [0, 3, 8, 14, 21])
def test_an_error_of_the_disk_is_explained_and_loses_nothing(
    good: int, code: int, says: str, tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first `good` writes succeed. On a full disk the next one stops halfway, on a read-only disk it does not begin."""
    unbroken = forks.unbroken(CASES["gpm"], tmp_path)
    runs = tmp_path / "runs"
    words = ["run", "permuted-digits", "gpm", *options(CASES["gpm"]), "--deterministic", "--runs", str(runs)]
    left, real = good, os.write

    def write(descriptor: int, data: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            if code == errno.ENOSPC:
                real(descriptor, bytes(data)[: len(data) // 2])
            raise OSError(code, os.strerror(code))
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        result = runner.invoke(app, [*words, "--device", "cpu"])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert not [path for path in runs.rglob("*") if path.name.endswith(".tmp")]
    result = runner.invoke(app, [*words, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    (run,) = find_runs(runs)
    assert outcome(run) == unbroken


def test_one_run_that_cannot_continue_does_not_stop_the_others(tmp_path: Path, forks: Forks) -> None:
    own = Case("finetune", ALEXNET, own=True)
    lost = cut_off(own, tmp_path / "runs", forks)
    (tmp_path / "own.py").unlink()
    RunFolder.create(tmp_path / "runs", resolve("permuted-digits", "finetune", FEW), 0)
    result = runner.invoke(app, ["resume", str(tmp_path / "runs"), "--device", "cpu"])
    assert result.exit_code == 1
    assert "There is no file" in result.stderr
    assert [run.finished for run in find_runs(tmp_path / "runs") if run.path != lost.path] == [True]


def test_a_run_that_was_moved_is_not_started_elsewhere(tmp_path: Path, forks: Forks) -> None:
    run = cut_off(CASES["gpm"], tmp_path / "runs", forks)
    moved = tmp_path / "mine" / "seed0"
    moved.parent.mkdir()
    run.path.rename(moved)
    result = runner.invoke(app, ["resume", str(moved)])
    assert result.exit_code == 1
    assert "was moved" in result.stderr
    assert find_runs(tmp_path / "runs") == []
