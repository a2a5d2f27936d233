"""Jobs through SLURM, by submitit. One that meets its time limit is queued again and continues from its checkpoint."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

from remnant.errors import RunError

from .remote import Errand, Remote, check_device
from .slurm_queue import Queue

if TYPE_CHECKING:
    from .launch import Plan

MINUTES = 120
TIME_LIMITS = 1000  # that one job may meet


class Slurm(Remote):
    """SLURM, with options as `sbatch` takes them: `partition=gpu,time=240,gres=gpu:1`. Times are in minutes."""

    cluster: ClassVar[str] = "slurm"  # of submitit; tests use its local one

    def __init__(self, options: str, plan: Plan) -> None:
        check_device(plan)
        try:
            import submitit
        except ImportError:
            raise RunError("--on slurm needs a package: pip install 'remnant[slurm]'.") from None
        given = dict(part.partition("=")[::2] for part in options.split(",") if part)
        time = given.pop("time", str(MINUTES))
        if not time.isdigit() or not all(given.values()):
            raise RunError(
                f"--on slurm:{options}: write options of sbatch with their values, and the time in minutes: "
                "--on slurm:partition=gpu,time=240."
            )
        try:
            self.executor: Any = submitit.AutoExecutor(
                plan.root / ".slurm", self.cluster, slurm_max_num_timeout=TIME_LIMITS
            )
        except RuntimeError as error:
            raise RunError(f"--on slurm: {error} Run the command on a machine that has sbatch and srun.") from error
        # How many GPUs are free is up to SLURM: each job has one seed, or --parallel.
        self.gpus = 0 if plan.device == "cpu" else sys.maxsize
        if plan.device == "cuda" and not {"gres", "gpus", "gpus-per-node"} & set(given):
            given["gres"] = "gpu:1"
        self.queue = Queue()
        self.executor.update_parameters(
            name=f"remnant-{plan.settings.method}",
            timeout_min=int(time),
            cpus_per_task=1,
            slurm_additional_parameters=given,
        )

    def start(self, errand: Errand) -> Any:
        try:
            handle = self.executor.submit(_Requeued(**vars(errand)))
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

    def close(self) -> None:
        pass


class _Requeued(Errand):
    """An errand that submitit queues again just before its time is up."""

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
