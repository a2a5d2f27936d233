"""Real signals to real commands: TERM and HUP end a command as Ctrl-C does, with the exit code of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from remnant.experiments.runs import find_runs

pytest.importorskip("typer")
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no such signals")
SAID = "Interrupted. Finished tasks are kept. Run the same command again to continue.\n"


def heard(name: str) -> signal.Signals:
    """The signal, unless the tests were started by nohup or in the background of a script, where nothing hears it."""
    if signal.getsignal(number := signal.Signals[name]) is signal.SIG_IGN:
        pytest.skip(f"{name} is ignored here")
    return number


@contextmanager
def command(runs: Path, seeds: int, until: str, method: str = "gpm") -> Iterator[subprocess.Popen[str]]:
    """A run that would take long, once the file `until` is there for every seed. It ends with the block."""
    words = ["run", "permuted-digits", method, "--seeds", str(seeds), "--parallel", "2", "--runs", str(runs)]
    words += ["--device", "cpu", "--set", "training.epochs=5000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "remnant", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # its children and it are a group, which a terminal's Ctrl-C reaches as a whole
    )
    try:
        end = time.monotonic() + 60
        while len(list(runs.rglob(until))) < seeds:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, f"no {until} after a minute"
            time.sleep(0.01)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_run_ends_like_one_after_ctrl_c(tmp_path: Path) -> None:
    with command(tmp_path, 1, "metrics.jsonl") as process:
        process.send_signal(heard("SIGHUP"))
        said, _ = process.communicate(timeout=60)
    assert (said, process.returncode) == (SAID, 129)
    (run,) = find_runs(tmp_path)
    assert not run.finished
    with run.lock():
        assert run.metrics()


@pytest.mark.parametrize(
    ("name", "code", "until"), [("SIGINT", 130, "environment.json"), ("SIGTERM", 143, "metrics.jsonl")]
)
def test_several_seeds_end_without_a_word_of_their_own(name: str, code: int, until: str, tmp_path: Path) -> None:
    """Also while their processes still start, where a Ctrl-C would show a traceback of the imports."""
    with command(tmp_path, 2, until) as process:
        os.killpg(process.pid, heard(name))
        said, _ = process.communicate(timeout=60)  # ends with the last child: they hold its pipes
    assert (said, process.returncode) == (SAID, code)
    for run in find_runs(tmp_path):
        with run.lock():
            assert not run.finished


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_import_that_swallows_exceptions_does_not_swallow_the_signal(name: str, code: int, tmp_path: Path) -> None:
    """As the compiled modules of scikit-learn sometimes do."""
    started, own = tmp_path / "started", tmp_path / "own.py"
    (tmp_path / "swallowing.py").write_text(
        f"import time\nopen({str(started)!r}, 'w').close()\ntry:\n    time.sleep(1)\nexcept BaseException:\n    pass\n"
    )
    own.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport swallowing\n"
        "from remnant.methods import Finetune\nclass Own(Finetune): pass\n"
    )
    with command(tmp_path, 1, started.name, f"{own}:Own") as process:
        process.send_signal(heard(name))
        said, _ = process.communicate(timeout=60)
    assert (said, process.returncode) == (SAID, code)
