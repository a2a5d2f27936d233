"""Runs on a Ray cluster of two machines, one of which is killed."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from remnant.errors import RunError
from remnant.experiments import Plan, resolve, run
from remnant.experiments.execute import Progress
from remnant.experiments.runs import RunFolder

ray = pytest.importorskip("ray")
remnant_cli = pytest.importorskip("remnant.cli")
psutil = pytest.importorskip("psutil")
cluster_utils = pytest.importorskip("ray.cluster_utils")

# A killed machine refuses to answer, which is noticed at the next check. A busy one answers late, and must not be taken
# for a lost one: its job would wait for a machine that never comes back.
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 60_000,
    "health_check_failure_threshold": 2,
    "worker_niceness": 0,  # else the tests beside this one get almost all of a busy machine
}
# Its second task waits for a file, so that a test can do something in the middle of a run.
OWN = """
import time
from pathlib import Path
from remnant.methods import Finetune

class Waits(Finetune):
    def start(self, task):
        end = time.monotonic() + 120
        while task == 1 and not Path("go").exists():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.05)
        super().start(task)
"""
FEW = ("stream.tasks=3", "training.epochs=2", "training.batch=20")


@pytest.fixture
def cluster() -> Iterator[Any]:
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK_TO_NOTICE}
    made = cluster_utils.Cluster(initialize_head=True, connect=False, head_node_args=head)
    ray.init(made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def plan(root: str, seeds: tuple[int, ...], on: str = "ray") -> Plan:
    return Plan(resolve("permuted-digits", "own.py:Waits", FEW), seeds, Path(root), "cpu", parallel=1, on=on)


def matrices(folders: list[RunFolder]) -> list[bytes]:
    return [(folder.path / "accuracy.csv").read_bytes() for folder in folders]


def kill(cluster: Any, node: Any) -> None:
    """Ends all processes of a machine at once: those that hold a run, and Ray's own."""
    (raylet,) = node.all_processes["raylet"]
    pids = [int(lock.read_text().split()[0]) for lock in Path.cwd().rglob(".lock")]
    (worker,) = (pid for pid in pids if psutil.Process(pid).ppid() == raylet.process.pid)
    os.kill(worker, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


def resumes_elsewhere(cluster: Any) -> None:
    """Two runs wait for their second task, each on its own machine, when one of the machines is killed."""
    second, heard = cluster.add_node(num_cpus=1), list[Progress]()

    def watch(progress: Progress) -> None:
        heard.append(progress)
        if len({each.seed for each in heard if each.row}) == 2 and not Path("go").exists():
            kill(cluster, second)
            Path("go").touch()

    folders = run(plan("elsewhere", (0, 1)), watch)
    assert [each.note for each in heard if each.note] == ["resumed at task 2, epoch 1"]
    assert {each.seed for each in heard if each.finished} == {0, 1}
    assert len({(each.seed, each.task) for each in heard if each.row}) == 6
    assert matrices(folders) == matrices(run(plan("here", (0, 1), "here")))
    assert not list(Path("elsewhere").rglob(".messages*"))


def continues_here_after_an_interrupt() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.row:
            raise KeyboardInterrupt

    Path("go").unlink()
    with pytest.raises(KeyboardInterrupt):
        run(plan("elsewhere", (2,)), interrupt)
    Path("go").touch()
    (path,) = Path("elsewhere").rglob("seed2")
    with RunFolder.open(path).lock(20):  # until Ray has ended its task
        assert not RunFolder.open(path).finished
    notes: list[str] = []
    folders = run(plan("elsewhere", (2,), "here"), lambda progress: notes.append(progress.note))
    assert "resumed at task 2, epoch 1" in notes
    assert matrices(folders) == matrices(run(plan("here", (2,), "here")))


def sweeps_from_the_command_line() -> None:
    words = ["sweep", "permuted-digits", "finetune", "--over", "lr=0.01,0.05", "--on", "ray", "--device", "cpu"]
    words += [word for change in FEW for word in ("--set", change)]
    runner = pytest.importorskip("typer.testing").CliRunner()
    result = runner.invoke(remnant_cli.app, words)
    assert result.exit_code == 0, result.output
    assert {"lr=0.01, seed 0", "lr=0.05, seed 0"} <= {line.split(":")[0] for line in result.stderr.splitlines()}
    if find_spec("optuna"):
        result = runner.invoke(remnant_cli.app, [*words, "--search", "2"])
        assert "Best of 2 trials" in result.stdout, result.output
    refused = runner.invoke(remnant_cli.app, [*words, "--device", "cuda"])
    assert "the cluster has no GPU. Use --device cpu" in refused.stderr


def test_runs_on_a_cluster_of_two_machines(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, because a cluster takes seconds to start."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN, encoding="utf-8")
    resumes_elsewhere(cluster)
    continues_here_after_an_interrupt()
    sweeps_from_the_command_line()


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))  # nobody listens there
        where = f"127.0.0.1:{port.getsockname()[1]}"
        for on in (f"ray:{where}", f"ray://{where}"):
            with pytest.raises(RunError, match=r"no Ray cluster responds at .*Start one with `ray start --head`"):
                run(Plan(resolve("permuted-digits", "gpm"), (0,), tmp_path, "cpu", on=on))
