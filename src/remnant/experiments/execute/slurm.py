"""Jobs through SLURM, by submitit. A job that reaches its time limit is queued again and continues from its checkpoint."""

import subprocess
import sys
import time
from typing import Any, ClassVar

from remnant.errors import RunError
from remnant.lazy import import_extra

from .launch import Plan
from .remote import Remote, RemoteJob

MINUTES = 120
TIME_LIMITS = 1000  # that one job may reach
ASK_EVERY = 20.0  # seconds between two checks of the queue
NO_GPU = (
    "SLURM was not asked for a GPU, so the jobs may have to use CPUs. --device cuda asks for one GPU a job, and --device cpu "
    "uses CPUs without this note."
)
LOST_AFTER = 90.0  # seconds out of the queue, because network storage may show a job's result late


class Slurm(Remote):
    """SLURM, with options as `sbatch` takes them: `partition=gpu,time=240,gres=gpu:1`. Times are in minutes."""

    cluster: ClassVar[str] = "slurm"  # of submitit; tests use its local one

    def __init__(self, options: str, plan: Plan) -> None:
        submitit = import_extra("submitit", "--on slurm")
        given = dict(part.partition("=")[::2] for part in options.split(",") if part)
        minutes = given.pop("time", str(MINUTES))
        if not minutes.isdigit() or not all(given.values()):
            raise RunError(
                f"--on slurm:{options}: write options of sbatch with their values, and the time in minutes: "
                "--on slurm:partition=gpu,time=240."
            )
        if not {"gres", "gpus", "gpus-per-node", "gpus-per-task"} & set(given):
            if plan.device == "cuda":
                given["gres"] = "gpu:1"
            elif plan.device == "auto":
                self.note = NO_GPU
        # How many GPUs are free is up to SLURM: each job has one seed, or --parallel.
        self.gpus = 0 if plan.device == "cpu" else sys.maxsize
        self.queue = Queue()
        try:
            self.executor = submitit.AutoExecutor(plan.root / ".slurm", self.cluster, slurm_max_num_timeout=TIME_LIMITS)
        except RuntimeError as error:
            raise RunError(f"--on slurm: {error} Run the command on a machine that has sbatch and srun.") from error
        name = f"remnant-{plan.settings.method}"
        self.executor.update_parameters(
            name=name, timeout_min=int(minutes), cpus_per_task=1, slurm_additional_parameters=given
        )

    def start(self, remote_job: RemoteJob) -> Any:
        try:
            handle = self.executor.submit(_Requeued(**vars(remote_job)))
        except RuntimeError as error:  # submitit's, with what sbatch printed
            reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
            raise RunError(
                f"--on slurm: {reason}. Check the options after slurm: and whether sinfo answers."
            ) from error
        self.queue.add(handle.job_id)
        return handle

    def ended(self, handle: Any) -> list[str] | None:
        # `handle.done()` would ask sacct, which knows nothing on a cluster without an accounting database.
        if self.cluster == "slurm" and not handle.paths.result_pickle.exists():
            cancelled = f"SLURM job {handle.job_id} left the queue without a result; its log is {handle.paths.stderr}."
            return [cancelled] if self.queue.has_lost(handle.job_id) else None
        if handle.exception() is None:
            sentences: list[str] = handle.result()
            return sentences
        return [f"SLURM job {handle.job_id} failed; its log is {handle.paths.stderr}."]

    def stop(self, handle: Any) -> None:
        handle.cancel(check=False)


class _Requeued(RemoteJob):
    """A job that submitit queues again just before its time is up."""

    is_queued_again = False

    def __call__(self) -> list[str]:
        sentences = super().__call__()
        if self.is_queued_again:  # submitit ended the run by sys.exit, and a result would end the job
            sys.exit(-1)
        return sentences

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        again = DelayedSubmission(_Requeued(**vars(self)))
        self.is_queued_again = True
        return again


class Queue:
    """The jobs of this user, with the time when each was last in the queue. Every cluster has squeue, but not sacct."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._asked = 0.0

    def add(self, job: str) -> None:
        self._seen[job] = time.monotonic()

    def has_lost(self, job: str) -> bool:
        """Whether the job has left the queue, some time ago."""
        now = time.monotonic()
        if now - self._asked > ASK_EVERY:
            self._asked = now
            answer = subprocess.run(["squeue", "--me", "--noheader", "--format=%A"], capture_output=True, text=True)
            # If the controller does not answer, all jobs may well be there.
            self._seen |= dict.fromkeys(answer.stdout.split() if answer.returncode == 0 else self._seen, now)
        return now - self._seen[job] > LOST_AFTER
