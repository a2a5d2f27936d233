"""Places to run jobs: in processes on this machine, on a Ray cluster or through SLURM. A new place is a class and a line."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from remnant.errors import RunError, UserError, did_you_mean, own_line

from .one_run import Progress

if TYPE_CHECKING:
    from .launch import Job, Plan
    from .remote import Remote

OnMessage = Callable[["Job", Progress | Exception], None]


class WorkerError(RunError):
    """An error of a job in another process, which has printed its traceback if it has one."""


class Place(Protocol):
    """Where jobs run."""

    gpus: int  # jobs that each get a GPU of their own at the same time; 0 if jobs run on CPUs

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Runs all jobs, and passes on their progress and errors. Ends them all when it is interrupted."""


def open_place(plan: Plan) -> Remote:
    """Connects to the place that `plan.on` names. The caller closes it."""
    name, _, rest = plan.on.partition(":")
    if name not in ("ray", "slurm"):
        raise RunError(f"--on {plan.on}: there is no such place. {did_you_mean(name, ('here', 'ray', 'slurm'))}")
    if plan.device not in ("auto", "cpu", "cuda"):
        raise RunError(f"--device {plan.device} --on {plan.on}: the cluster chooses the GPUs. Use auto, cuda or cpu.")
    if name == "slurm":
        from .slurm import Slurm

        return Slurm(rest, plan)
    from .ray import RayCluster

    address = plan.on if rest.startswith("//") else rest or os.environ.get("RAY_ADDRESS") or "auto"
    return RayCluster(address, plan)


def failures(job: Job, run: Callable[[], None], show: Callable[[str], object]) -> list[str]:
    """Runs a job in a worker process. Returns a sentence for its error, if any; `show` gets the traceback of a bug."""
    try:
        run()
    except RunError as error:  # its message names the run
        return [str(error)]
    except UserError as error:
        return [f"{job}: {error}"]
    except OSError as error:
        return [f"{job}: {error}{own_line(error)}"]
    except Exception as error:  # most likely in the user's own method: show all of it
        show(traceback.format_exc())
        return [f"{job}: {type(error).__name__}: {error}"]
    return []
