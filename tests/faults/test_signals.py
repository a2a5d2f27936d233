"""Real signals to real commands: TERM and HUP end a command as Ctrl-C does, with the exit code of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remnant.experiments.runs import find_runs

pytest.importorskip("typer")
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no such signals")
SAID = "Interrupted. Finished tasks are kept; remnant resume continues.\n"


def command(runs: Path, seeds: int, until: str) -> subprocess.Popen[str]:
    """A run that would take long, once every seed has the file `until`."""
    words = ["run", "permuted-digits", "gpm", "--seeds", str(seeds), "--parallel", "2", "--runs", str(runs)]
    words += ["--device", "cpu", "--set", "training.epochs=5000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "remnant", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # its children and it are a group, which a terminal's Ctrl-C reaches as a whole
    )
    end = time.monotonic() + 60
    while len(list(runs.rglob(until))) < seeds:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"no {until} after a minute"
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_run_ends_like_one_after_ctrl_c(name: str, code: int, tmp_path: Path) -> None:
    process = command(tmp_path, 1, "metrics.jsonl")
    process.send_signal(getattr(signal, name))
    said, _ = process.communicate(timeout=60)
    assert (said, process.returncode) == (SAID, code)
    (run,) = find_runs(tmp_path)
    assert not run.finished
    with run.lock():
        assert run.metrics()


@pytest.mark.parametrize(
    ("name", "code", "until"), [("SIGINT", 130, "environment.json"), ("SIGTERM", 143, "metrics.jsonl")]
)
def test_several_seeds_end_without_a_word_of_their_own(name: str, code: int, until: str, tmp_path: Path) -> None:
    """Also while their processes still start, where a Ctrl-C would show a traceback of the imports."""
    process = command(tmp_path, 2, until)
    os.killpg(process.pid, getattr(signal, name))
    said, _ = process.communicate(timeout=60)  # ends with the last child: they hold its pipes
    assert (said, process.returncode) == (SAID, code)
    for run in find_runs(tmp_path):
        with run.lock():
            assert not run.finished
