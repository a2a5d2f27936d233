"""Places to run: simulated GPUs, SLURM without SLURM, and what goes wrong on the way to another machine."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remnant.data import data_root, load_stream
from remnant.errors import RunError
from remnant.experiments import Plan, resolve, run
from remnant.experiments.execute import Progress, RunInProgress, gpu_scheduler, launch, run_together
from remnant.experiments.execute.launch import Job
from remnant.experiments.execute.processes import Processes
from remnant.experiments.execute.ray import RayCluster
from remnant.experiments.execute.remote import Messages, RemoteJob
from remnant.experiments.execute.slurm import Queue, Slurm, _Requeued
from remnant.experiments.runs import RunFolder
from remnant.methods import Finetune
from remnant.training import EpochDone

CPU = torch.device("cpu")
FEW = ("stream.tasks=2", "training.epochs=1", "training.batch=20")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMNANT_DATA", str(tmp_path / "data"))  # which remote jobs set, too


def plan(root: Path, method: str = "finetune", seeds: Sequence[int] = (0,), device: str = "cpu", **how: Any) -> Plan:
    return Plan(resolve("permuted-digits", method, FEW), tuple(seeds), root, device, **how)


def ignore(progress: Progress) -> None:
    pass


def matrices(folders: Any) -> list[bytes]:
    return [(folder.path / "accuracy.csv").read_bytes() for folder in folders]


# --- several GPUs of one machine --------------------------------------------------------------------------------------


class TwoGpus:
    """Stands for a machine with two GPUs, and remembers the jobs it was given."""

    gpus = 2

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job], report: Any) -> None:
        self.jobs += jobs
        for job in jobs:
            for folder in job.folders:
                folder.save_result({"acc": 0.5, "bwt": 0.0, "seconds": {}})


def packs(tmp_path: Path, **how: Any) -> list[tuple[str, list[int]]]:
    place = TwoGpus()
    plans = [plan(tmp_path, method, **how) for method in ("finetune", "gpm", "er")[: how.pop("methods", 1)]]
    run_together(plans, [ignore] * len(plans), place)
    return [(job.plan.settings.method, [folder.seed for folder in job.folders]) for job in place.jobs]


def test_seeds_are_spread_over_the_gpus_side_by_side(tmp_path: Path) -> None:
    assert packs(tmp_path / "a", seeds=range(5)) == [("finetune", [0, 2, 4]), ("finetune", [1, 3])]
    assert packs(tmp_path / "b", seeds=range(5), parallel=2) == [
        ("finetune", [0, 3]),
        ("finetune", [1, 4]),
        ("finetune", [2]),
    ]
    assert packs(tmp_path / "a", seeds=range(5)) == []  # all are finished


class Imagined:
    """A plan without files: its folders are only their seeds, and are finished once a job has them."""

    on = "here"
    settings = SimpleNamespace(benchmark="imagined", stream={})

    def __init__(self, seeds: int, parallel: int) -> None:
        self.seeds, self.parallel = range(seeds), parallel

    def folder(self, seed: int) -> Any:
        return SimpleNamespace(seed=seed, plan=self, finished=False)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 5), st.integers(0, 3))
def test_every_seed_is_in_one_job_and_no_job_is_larger_than_asked(seeds: list[int], gpus: int, parallel: int) -> None:
    jobs: list[Job] = []

    def take(given: Sequence[Job], report: Any) -> None:
        jobs.extend(given)
        for job in given:
            for folder in job.folders:
                folder.finished = True  # type: ignore[misc]

    plans: Any = [Imagined(count, parallel) for count in seeds]
    place: Any = SimpleNamespace(gpus=gpus, run=take)
    outcomes = run_together(plans, [ignore] * len(plans), place)
    taken = [folder for job in jobs for folder in job.folders]
    assert sorted(map(id, taken)) == sorted(id(folder) for folders in outcomes for folder in folders)  # type: ignore
    for job in jobs:
        assert 0 < len(job.folders) <= ((parallel or -(-sum(seeds) // gpus)) if gpus else 1)
        assert all(folder.plan is job.plan for folder in job.folders)  # type: ignore[attr-defined]


def test_a_machine_with_two_gpus_starts_a_process_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[torch.device]] = []

    class Recorded(TwoGpus):
        def __init__(self, workers: list[torch.device]) -> None:
            super().__init__()
            made.append(workers)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(launch, "Processes", Recorded)
    for number, device in enumerate(("auto", "cuda:0,cuda:2")):
        run(plan(tmp_path / str(number), seeds=(0, 1), device=device))
    assert [[device.index for device in workers] for workers in made] == [[0, 1, 2], [0, 2]]


@pytest.mark.parametrize("parallel", [0, 1])
def test_missing_data_is_found_once_and_before_the_jobs(
    parallel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a job was started")

    loaded: list[str] = []
    monkeypatch.setattr(Processes, "run", lambda self, jobs, report: never() if jobs else None)
    monkeypatch.setattr(Job, "run", never)
    monkeypatch.setattr(launch, "load_stream", lambda name, **how: loaded.append(name) or load_stream(name, **how))
    plans = [Plan(resolve("pmnist", method), (0, 1, 2), tmp_path, "cpu", parallel) for method in ("gpm", "ewc")]
    outcomes = run_together(plans, [ignore] * 2)
    assert loaded == ["pmnist"]
    assert [str(error).count("remnant data fetch mnist") for error in outcomes] == [1, 1]
    assert not list(tmp_path.rglob("seed*"))


def test_a_job_on_a_gpu_takes_its_seeds_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[list[int]] = []

    def side_by_side(runs: Sequence[RunInProgress], device: torch.device) -> None:
        together.append([each.seed for each in runs])

    monkeypatch.setattr(gpu_scheduler, "run_side_by_side", side_by_side)
    asked = plan(tmp_path, seeds=(0, 1, 2))
    gpu_scheduler.run_on_gpu(asked, [asked.folder(seed) for seed in asked.seeds], CPU, ignore)
    assert together == [[0, 1, 2]]


# --- other machines ---------------------------------------------------------------------------------------------------


def remote_job(root: Path) -> RemoteJob:
    asked = plan(root)
    return RemoteJob(Job(asked, [asked.folder(0)]))


def test_progress_arrives_whole_and_once_even_from_a_torn_file(tmp_path: Path) -> None:
    epoch = EpochDone(0, 1, 2, 0.5, float("nan"), 0.9, 0.1, 10, 0.1)
    sent = [
        Progress(0, 0, 2, epoch=epoch),
        Progress(0, 0, 2, row=(0.5, 0.25)),
        Progress(0, note="– a note", serious=True),
    ]
    job = remote_job(tmp_path).job
    writer, reader = Messages(job), Messages(job)
    assert list(reader.receive()) == []
    for progress in sent:
        writer.send(progress)
    with reader.path.open("a", encoding="utf-8") as file:
        file.write("{torn\n" + '{"seed": 1')  # two machines at once, and a line that is still being written
    received = list(reader.receive())
    assert [repr(each) for each in received] == [repr(each) for each in sent]  # NaN is not equal to itself
    assert list(reader.receive()) == []


@pytest.mark.parametrize("chosen", ["", "data"])
def test_other_machines_use_the_data_of_the_command(
    chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    monkeypatch.setenv("REMNANT_DATA", chosen)
    travelling = pickle.loads(pickle.dumps(remote_job(tmp_path)))
    monkeypatch.setenv("HOME", str(tmp_path / "there"))
    monkeypatch.setenv("REMNANT_DATA", "")
    assert travelling() == []
    assert data_root() == tmp_path / (chosen or "here/.cache/remnant")


def test_a_machine_that_does_not_share_the_folder_says_so(tmp_path: Path) -> None:
    travelling = remote_job(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs")
    (sentence,) = travelling()
    assert "does not see the run in" in sentence
    assert sentence.endswith("choose one on shared storage with --runs.")
    assert not (tmp_path / "runs").exists()


def test_a_second_try_waits_for_the_lock_of_a_lost_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    travelling, waited = remote_job(tmp_path), list[float]()
    real = RunFolder.lock

    def lock(self: RunFolder, patience: float = 0.0) -> Any:
        waited.append(patience)
        return real(self)

    monkeypatch.setattr(RunFolder, "lock", lock)
    assert travelling() == []
    assert max(waited) == 0
    (travelling.job.folders[0].path / "result.json").unlink()
    assert travelling() == []  # the messages of the first try are there
    assert max(waited) > 60


def test_a_bug_on_another_machine_is_shown_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object) -> None:
        raise TypeError("a mistake")

    monkeypatch.setattr(Finetune, "start", mistaken)
    travelling = remote_job(tmp_path)
    assert travelling() == ["Seed 0: TypeError: a mistake"]
    (note,) = (each.note for each in Messages(travelling.job).receive())
    assert "in mistaken" in note


@pytest.mark.parametrize(
    ("on", "device", "says"),
    [
        ("rayy", "cpu", "there is no such place. Did you mean 'ray'?"),
        ("moon", "cpu", "there is no such place. Choose from: here, ray, slurm."),
        ("ray", "cuda:1", "the cluster chooses the GPUs. Use auto, cuda or cpu."),
        ("slurm", "cpu,cpu", "the cluster chooses the GPUs."),
    ],
)
def test_a_place_that_cannot_be_used_is_refused_before_a_folder_is_made(
    on: str, device: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=says.replace("?", r"\?")):
        run(plan(tmp_path / "runs", device=device, on=on))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("on", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named(on: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # importing it raises an ImportError
    with pytest.raises(RunError, match=f"--on {on} needs a package: pip install {package}"):
        run(plan(tmp_path, on=on))


# --- Ray, without Ray (test_ray.py has a real cluster) -----------------------------------------------------------------


class PretendedRay:
    """A cluster with some GPUs, which keeps what it is given."""

    def __init__(self, gpus: int, connected: bool = True) -> None:
        self.gpus, self.connected = gpus, connected
        self.options: dict[str, Any] = {}
        self.started: list[RemoteJob] = []

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, address: str, **_: object) -> None:
        raise ConnectionError("Ray's own words\nand a trace")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, "GPU": float(self.gpus)} if self.gpus else {"CPU": 8.0}

    def remote(self, **options: Any) -> Any:
        self.options = options
        return lambda function: SimpleNamespace(remote=self.started.append)


def pretend_ray(monkeypatch: pytest.MonkeyPatch, **how: Any) -> PretendedRay:
    pretended = PretendedRay(**how)
    monkeypatch.setattr("remnant.experiments.execute.ray.import_extra", lambda *_: pretended)
    return pretended


@pytest.mark.parametrize(
    ("gpus", "device", "gets"), [(2, "auto", "cuda"), (2, "cuda", "cuda"), (2, "cpu", "cpu"), (0, "auto", "cpu")]
)
def test_a_ray_task_has_one_gpu_if_the_cluster_has_some(
    gpus: int, device: str, gets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pretend_ray(monkeypatch, gpus=gpus)
    asked = plan(tmp_path, device=device)
    place = RayCluster("auto", asked)
    place.start(RemoteJob(Job(asked, [asked.folder(0)])))
    assert place.gpus == (2 if gets == "cuda" else 0)
    assert ray.options["num_gpus"] == (1 if gets == "cuda" else 0)
    assert [each.job.plan.device for each in ray.started] == [gets]


def test_an_address_that_ray_would_wait_for_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_ray(monkeypatch, gpus=0, connected=False)
    with pytest.raises(
        RunError, match=r"--on ray://: the address names no machine .* ray:HEAD:6379 or ray://HEAD:10001"
    ):
        run(plan(tmp_path, on="ray://"))
    with socket.create_server(("127.0.0.1", 0)) as other:  # listens, but is not what Ray looks for
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(RunError, match="6379 belongs to ray:HOST:PORT, and 10001 to ray://HOST:PORT") as caught:
            run(plan(tmp_path, on=f"ray:{address}"))
    assert "trace" not in str(caught.value)


# --- SLURM ------------------------------------------------------------------------------------------------------------


def test_slurm_runs_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr(Slurm, "cluster", "debug")  # of submitit: in this process
    heard: list[Progress] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folders = run(plan(tmp_path / "slurm", device="auto", on="slurm:partition=short,time=10"), heard.append)
    assert [each.task for each in heard if each.row] == [0, 1]
    assert heard[0].note.startswith("SLURM was not asked for a GPU")
    assert matrices(folders) == matrices(run(plan(tmp_path / "here")))
    with pytest.raises(RunError, match=r"write options of sbatch with their values, and the time in minutes"):
        run(plan(tmp_path, on="slurm:partition,time=1:00:00"))


def test_slurm_gets_the_options_of_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    place = Slurm("partition=gpu,time=240,mem=16G", plan(tmp_path, device="cuda"))
    script = place.executor._executor._make_submission_file_text("remnant", "1")
    for line in ("--partition=gpu", "--time=240", "--mem=16G", "--gres=gpu:1", "--cpus-per-task=1"):
        assert f"#SBATCH {line}\n" in script
    for options, device in (("", "cuda"), ("", "cpu"), ("gres=gpu:a100:1", "auto"), ("gpus-per-task=1", "auto")):
        assert Slurm(options, plan(tmp_path, device=device)).note == ""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RunError, match="Run the command on a machine that has sbatch and srun"):
        Slurm("", plan(tmp_path))


def test_a_job_that_sbatch_refuses_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    for name, does in {
        "srun": "",
        "sbatch": "echo 'sbatch: error: invalid partition specified: gpuu' >&2; exit 1",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RunError, match=r"invalid partition specified: gpuu\. Check the options after slurm:"):
        run(plan(tmp_path / "runs", on="slurm:partition=gpuu"))


def test_a_slurm_job_that_leaves_the_queue_without_a_result_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for squeue prints the jobs in a file, and fails without the file. The clock is ours."""
    listed, clock = tmp_path / "jobs", iter([0.0, 30.0, 200.0, 400.0, 450.0, 520.0])
    (tmp_path / "squeue").write_text(f"#!/bin/sh\nwhile read job; do echo $job; done < {listed}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("remnant.experiments.execute.slurm.time.monotonic", lambda: next(clock))
    queue = Queue()
    queue.add("7")
    listed.write_text("5\n7\n")
    assert not queue.has_lost("7")
    listed.unlink()  # the controller does not answer
    assert not queue.has_lost("7")
    listed.write_text("5\n7\n")
    assert not queue.has_lost("7")
    listed.write_text("5\n")
    assert not queue.has_lost("7")  # its result may be on its way
    assert queue.has_lost("7")


def test_a_slurm_job_whose_time_is_up_is_queued_again_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submitit's handler of the signal asks for a checkpoint, queues it and calls sys.exit."""
    pytest.importorskip("submitit")
    travelling, queued = _Requeued(**vars(remote_job(tmp_path))), list[Any]()

    def time_is_up(self: Finetune, task: int, train: object) -> None:
        if task == 1:
            queued.append(travelling.checkpoint())
            sys.exit(-1)

    with monkeypatch.context() as patch:
        patch.setattr(Finetune, "finish", time_is_up)
        with pytest.raises(SystemExit):
            travelling()
    assert not travelling.job.folders[0].finished
    again = pickle.loads(pickle.dumps(queued[0]))
    assert again.result() == []
    assert travelling.job.folders[0].finished


STAND_INS = {  # `remnant` runs while there is a file "slow"; `scontrol` notes what it is asked for
    "remnant": """echo "$REMNANT_DATA $@" >> "$0.log"
        trap 'echo ended >> "$0.log"; exit 143' TERM
        while [ -e slow ]; do sleep 0.05; done
        test ! -e fails""",
    "scontrol": """echo "$@" >> "$(dirname "$0")/remnant.log\"""",
}


@pytest.fixture
def array(tmp_path: Path) -> Callable[[int], subprocess.Popen[bytes]]:
    """Starts the job array's script of the docs for one number of its array, as sbatch would."""
    page = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(#!.*?)```", page, re.DOTALL)
    (tmp_path / "seeds.sh").write_text(script, encoding="utf-8")
    for name, does in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)

    def start(number: int) -> subprocess.Popen[bytes]:
        variables = {"SLURM_ARRAY_JOB_ID": "71", "SLURM_ARRAY_TASK_ID": str(number)}
        variables["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        return subprocess.Popen(["bash", "-u", "seeds.sh"], cwd=tmp_path, env=variables)

    return start


def test_the_array_script_of_the_docs_runs_one_seed_per_job(array: Any, tmp_path: Path) -> None:
    parse_seeds = pytest.importorskip("remnant.cli.runs").parse_seeds
    first, last = map(int, re.findall(r"#SBATCH --array=(\d+)-(\d+)", (tmp_path / "seeds.sh").read_text())[0])
    assert [array(number).wait(20) for number in range(first, last + 1)] == [0] * 5
    calls = (tmp_path / "remnant.log").read_text().splitlines()
    assert [parse_seeds(re.findall(r"--seeds (\S+)", call)[0]) for call in calls] == [(n,) for n in range(5)]
    assert {call.split(" --seeds")[0] for call in calls} == {"/shared/remnant-data run split-cifar100 gpm"}
    assert all("--device cuda" in call for call in calls)
    (tmp_path / "fails").touch()
    assert array(0).wait(20) == 1  # a run that fails is not queued again
    assert "requeue" not in (tmp_path / "remnant.log").read_text()


def test_the_array_script_ends_the_run_and_queues_its_job_again_when_its_time_is_up(array: Any, tmp_path: Path) -> None:
    assert "#SBATCH --signal=B:USR1@90" in (tmp_path / "seeds.sh").read_text()
    (tmp_path / "slow").touch()
    log, job = tmp_path / "remnant.log", array(3)
    for _ in range(400):
        if log.exists():
            break
        time.sleep(0.05)
    time.sleep(0.2)  # until the stand-in handles signals
    job.send_signal(signal.SIGUSR1)
    assert job.wait(20) == 0
    assert log.read_text().splitlines()[1:] == ["ended", "requeue 71_3"]
