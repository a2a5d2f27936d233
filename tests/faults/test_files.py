"""Real faults against a run's files: killed processes, full disks, folders that are read-only or gone, two writers."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from remnant.errors import RunError
from remnant.evaluation import AccuracyMatrix
from remnant.experiments.runs import RunFolder


class Settings:
    benchmark, method, digest = "pmnist", "gpm", "0123abcd"

    def as_dict(self) -> dict[str, object]:
        return {"lr": 0.1}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", Settings(), 0)


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


# A process that has imported everything once and forks a child for each order: a kill costs milliseconds, not an import.
# An order is "COMMAND FOLDER NUMBER"; children answer on the same pipe, and die by os._exit or by the test's SIGKILL.
FORKS = """
import os, signal, sys, torch
from remnant.experiments.runs import RunFolder
torch.set_num_threads(1)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def step(run, n):
    run.record(task=0, epoch=n)
    run.save_checkpoint({"n": n, "w": torch.full((50_000,), float(n)), "more": [n, {"n": n}]})

def write(run, _):  # until killed
    state, note = run.load_checkpoint()
    n = state["n"] if state else 0
    run.truncate_metrics((0, n))
    while True:
        n += 1
        step(run, n)
        say("saved", n)

def die(run, moment):  # at the given one of the calls that change the disk, a write in its middle
    def fatal(name, real):
        def call(*arguments):
            nonlocal moment
            moment -= 1
            if moment == 0:
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os._exit(9)
            return real(*arguments)
        return call
    real_write = os.write
    for name in ("open", "write", "fsync", "replace", "unlink", "close"):
        setattr(os, name, fatal(name, getattr(os, name)))
    for n in (3, 4):
        step(run, n)
        real_write(1, f"saved {n}\\n".encode())

def hold(run, _):
    say("held", os.getpid())
    signal.pause()

for order in iter(sys.stdin.readline, ""):
    command, number, folder = order.rstrip("\\n").split(" ", 2)
    child = os.fork()
    if not child:
        try:
            run = RunFolder.open(folder)
            say("ready", os.getpid())
            with run.lock():
                {"write": write, "die": die, "hold": hold}[command](run, int(number))
        except BaseException as error:
            say("failed", repr(error))
        os._exit(0)
    os.waitpid(child, 0)
    say("ended")
"""


class Forks:
    """The process above, its commands and its answers."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, command: str, run: RunFolder, number: int = 0) -> int:
        """Gives the child's process number."""
        assert self.process.stdin
        self.process.stdin.write(f"{command} {number} {run.path}\n")
        self.process.stdin.flush()
        return int(self.answer("ready"))

    def answer(self, expected: str) -> str:
        assert self.process.stdout
        word, _, rest = self.process.stdout.readline().strip().partition(" ")
        assert word == expected, f"{word} {rest}"
        return rest

    def saved(self) -> int:
        """The last number the child said was saved before it ended."""
        assert self.process.stdout
        last = 0
        for line in iter(self.process.stdout.readline, "ended\n"):
            word, _, rest = line.strip().partition(" ")
            assert word == "saved", line
            last = int(rest)
        return last


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    forks = Forks()
    yield forks
    assert forks.process.stdin
    forks.process.stdin.close()
    forks.process.wait(timeout=10)
    assert forks.process.stdout
    forks.process.stdout.close()


def whole(run: RunFolder) -> int:
    """The number of the newest checkpoint, whose parts must agree and be undamaged."""
    state, note = RunFolder.open(run.path).load_checkpoint()
    assert note is None
    if state is None:
        return 0
    n: int = state["n"]
    assert state["more"] == [n, {"n": n}]
    assert torch.equal(state["w"], torch.full((50_000,), float(n)))
    return n


def test_killed_at_any_moment_it_has_a_whole_checkpoint_no_older_than_the_last_one_reported(
    run: RunFolder, forks: Forks
) -> None:
    moments = random.Random(20210413)
    newest = 0
    for _ in range(30):
        pid = forks.start("write", run)  # takes the lock at once: the kernel has dropped the dead one's
        time.sleep(moments.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        reported = forks.saved()
        found = whole(run)
        assert max(reported, newest) <= found
        newest = found
        lines = [line["epoch"] for line in run.metrics()]
        assert lines[:found] == list(range(1, found + 1))  # none twice, none lost that a checkpoint has seen
        assert len(lines) <= found + 1
    assert newest > 10  # how many there is time for depends on the machine
    with run.lock():
        assert left_behind(run.path) == []


def test_dying_between_any_two_calls_it_has_a_whole_checkpoint(tmp_path: Path, forks: Forks) -> None:
    """The process dies at each call that changes the disk, one after another; a write stops halfway."""
    moment, reported, leftovers = 0, 0, 0
    while reported < 4:
        moment += 1
        run = RunFolder.create(tmp_path, Settings(), moment)
        run.record(task=0, epoch=1)
        run.record(task=0, epoch=2)
        for n in (1, 2):
            run.save_checkpoint({"n": n, "w": torch.full((50_000,), float(n)), "more": [n, {"n": n}]})
        forks.start("die", run, moment)
        reported = forks.saved()
        found = whole(run)
        assert max(reported, 2) <= found <= max(reported, 2) + 1
        assert [line["epoch"] for line in run.metrics()][:found] == list(range(1, found + 1))
        leftovers += len(left_behind(run.path))
        with run.lock():
            assert left_behind(run.path) == []
            assert 2 <= len(list(run.path.glob("checkpoint-*"))) <= 3
            run.save_checkpoint({"n": 9})
        assert len(list(run.path.glob("checkpoint-*"))) == 2
        run.record(task=0, epoch=9)
        assert run.metrics()[-1] == {"task": 0, "epoch": 9}
    assert moment > 15
    assert leftovers > 4  # there was something to sweep


def test_a_second_process_is_refused_and_the_lock_dies_with_its_holder(run: RunFolder, forks: Forks) -> None:
    pid = forks.start("hold", run)
    assert forks.answer("held") == str(pid)
    with pytest.raises(RunError, match=f"seed0 is being written by process {pid}. Wait"), run.lock():
        pass
    os.kill(pid, signal.SIGKILL)
    forks.answer("ended")
    with run.lock():
        pass


def test_a_living_writers_temporary_file_is_not_removed(run: RunFolder, forks: Forks) -> None:
    living, mine, dead = (run.path / f".x.json.{pid}.tmp" for pid in (forks.process.pid, os.getpid(), 2**22 + 1))
    for path in (living, mine, dead):
        path.touch()
    (run.path / "notes.tmp").touch()  # not one of ours
    with run.lock():
        assert sorted(left_behind(run.path)) == sorted([living.name, "notes.tmp"])


WRITES: dict[str, Callable[[RunFolder], object]] = {
    "save_matrix": lambda run: run.save_matrix(AccuracyMatrix(1, [[0.25]])),
    "save_ranks": lambda run: run.save_ranks({"fc1": [2]}),
    "save_result": lambda run: run.save_result({"acc": 0.25}),
    "save_checkpoint": lambda run: run.save_checkpoint({"w": torch.ones(10_000)}),
    "record": lambda run: run.record(task=0, epoch=2, loss=0.25),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def filled(run: RunFolder) -> dict[str, bytes]:
    """The contents of a run folder with every kind of file."""
    run.save_matrix(AccuracyMatrix(1, [[0.5]]))
    run.save_ranks({"fc1": [1]})
    run.save_result({"acc": 0.5})
    run.save_checkpoint({"w": torch.zeros(10)})
    run.record(task=0, epoch=1, loss=0.5)
    return contents(run.path)


@every_write
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails_halfway_loses_nothing(
    run: RunFolder, write: Callable[[RunFolder], object], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = filled(run), os.write

    def half(descriptor: int, data: bytes) -> int:
        real(descriptor, bytes(data)[: len(data) // 2])
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(RunError) as error:
            write(run)
    assert ("The disk is full" in str(error.value)) == (code != errno.EIO)
    assert str(run.path) in str(error.value)
    assert contents(run.path) == before
    write(run)  # and once there is room again, it goes on


@pytest.mark.parametrize("name", sorted(WRITES.keys() - {"record"}))  # a line of metrics is not synced by itself
def test_a_disk_that_is_full_only_on_fsync_loses_nothing(
    run: RunFolder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled(run)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="disk is full"):
            WRITES[name](run)
    assert contents(run.path) == before


def test_a_checkpoint_and_the_lines_before_it_are_synced_before_the_rename(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a power cut leaves no renamed file without its content."""
    order: list[int | str] = []
    sync, replace = os.fsync, os.replace

    def seen_sync(descriptor: int) -> None:
        order.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def seen_replace(source: Path, target: Path) -> None:
        order.append("renamed")
        replace(source, target)

    run.record(task=0, epoch=1)
    monkeypatch.setattr(os, "fsync", seen_sync)
    monkeypatch.setattr(os, "replace", seen_replace)
    run.save_checkpoint({"n": 1})
    metrics, checkpoint = (run.path / name for name in ("metrics.jsonl", "checkpoint-000001.safetensors"))
    assert order == [metrics.stat().st_ino, checkpoint.stat().st_ino, "renamed", run.path.stat().st_ino]


def test_an_interrupt_while_writing_leaves_no_temporary_file(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled(run)

    def interrupted(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.save_result({"acc": 1.0})
    assert contents(run.path) == before


FULL_DISK = """
import sys
from pathlib import Path
import torch
from remnant.errors import RunError
from remnant.experiments.runs import RunFolder

class Settings:
    benchmark, method, digest = "pmnist", "gpm", "0123abcd"
    def as_dict(self): return {}

disk = Path(sys.argv[1])
run = RunFolder.create(disk / "runs", Settings(), 0)
run.save_checkpoint({"n": 1, "w": torch.ones(30_000)})
run.save_checkpoint({"n": 2, "w": torch.ones(30_000)})
run.record(task=0, epoch=2)
try:
    run.save_checkpoint({"n": 3, "w": torch.ones(30_000)})
except RunError as error:
    assert "The disk is full" in str(error), error
else:
    raise SystemExit("a third checkpoint found room")
with open(disk / "ballast", "wb", buffering=0) as file:
    try:
        while file.write(bytes(512)): pass
    except OSError: pass
lines = 0
try:
    while lines < 10_000:
        run.record(task=0, epoch=lines)
        lines += 1
except RunError as error:
    assert "The disk is full" in str(error), error
else:
    raise SystemExit("the disk never filled")
assert len(run.metrics()) == lines + 1
assert (run.path / "metrics.jsonl").read_bytes().endswith(b"}\\n")
assert not [path for path in run.path.iterdir() if path.name.endswith(".tmp")]
with run.lock():
    assert run.load_checkpoint()[0]["n"] == 2
    (disk / "ballast").unlink()
    run.clear_checkpoints()
    run.save_checkpoint({"n": 3, "w": torch.ones(30_000)})
    run.record(task=0, epoch=3)
    assert run.load_checkpoint()[0]["n"] == 3
print("survived")
"""


def test_on_a_disk_that_is_really_full_nothing_is_lost(tmp_path: Path) -> None:
    """A file system of 300 kB in a mount namespace, which ends with the process."""
    mount = 'mount -t tmpfs -o size=300k tmpfs "$1"'
    try:
        tried = subprocess.run(
            ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if tried.returncode:
        pytest.skip(f"mounting is not permitted here: {tried.stderr.strip()}")
    command = f'{mount} && exec "$2" -c "$3" "$1"'
    arguments = ["unshare", "-m", "sh", "-c", command, "sh", str(tmp_path), sys.executable, FULL_DISK]
    done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.stdout.strip() == "survived", done.stderr


@every_write
def test_a_folder_that_vanished_is_named_and_not_created(run: RunFolder, write: Callable[[RunFolder], object]) -> None:
    for path in run.path.iterdir():
        path.unlink()
    run.path.rmdir()
    with pytest.raises(RunError, match=r"seed0 is not there .* put it back"):
        write(run)
    assert not run.path.exists()
    with pytest.raises(RunError, match="vanished"), run.lock():
        pass


@every_write
def test_a_file_in_place_of_the_folder_is_a_clear_error(run: RunFolder, write: Callable[[RunFolder], object]) -> None:
    for path in run.path.iterdir():
        path.unlink()
    run.path.rmdir()
    run.path.touch()
    with pytest.raises(RunError, match="needs a folder where there is a file"):
        write(run)
    with pytest.raises(RunError, match="needs a folder where there is a file"):
        RunFolder.create(run.path.parents[3], Settings(), 0)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
@every_write
def test_a_read_only_folder_is_a_clear_error(run: RunFolder, write: Callable[[RunFolder], object]) -> None:
    for path in run.path.iterdir():
        path.chmod(0o444)
    run.path.chmod(0o555)
    try:
        with pytest.raises(RunError, match="you may read and write"):
            write(run)
        with pytest.raises(RunError, match="you may read and write"):
            RunFolder.create(run.path, Settings(), 0)
    finally:
        run.path.chmod(0o755)


@every_write
@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_folder_that_turns_read_only_is_a_clear_error(
    run: RunFolder, write: Callable[[RunFolder], object], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled(run)

    def refused(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        patch.setattr(os, "write", refused)
        with pytest.raises(RunError, match="you may read and write"):
            write(run)
    assert contents(run.path) == before
