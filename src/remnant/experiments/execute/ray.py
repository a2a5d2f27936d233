"""Jobs on a Ray cluster: each is a task with a core or a GPU. Ray starts it again elsewhere if its machine is lost."""

import socket
import warnings
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from remnant.errors import RunError
from remnant.lazy import import_extra

from .launch import Plan
from .remote import Remote, RemoteJob

SECONDS_TO_ANSWER = 10.0
LOST_MACHINES = 3  # that one job may survive, so that a job that kills its machines ends some day


class RayCluster(Remote):
    """The cluster at an address, or the one that this machine belongs to ("auto")."""

    def __init__(self, address: str, plan: Plan) -> None:
        self.ray = import_extra("ray", "--on ray")
        self.connected_here = not self.ray.is_initialized()
        if self.connected_here:
            self._connect(address, plan.on)
        resources = self.ray.cluster_resources()
        self.gpus = 0 if plan.device == "cpu" else int(resources.get("GPU", 0))
        if plan.device == "cuda" and not self.gpus:
            self.close()
            raise RunError(f"--on {plan.on}: the cluster has no GPU. Use --device cpu, or add a machine with a GPU.")
        self.task = self.ray.remote(
            num_cpus=1, num_gpus=min(1, self.gpus), max_retries=LOST_MACHINES, scheduling_strategy="SPREAD"
        )(_run)

    def _connect(self, address: str, name: str) -> None:
        problem = f"no Ray cluster responds at {address}"
        advice = "Start one with `ray start --head`, or check the address: ray:HEAD:6379 or ray://HEAD:10001"
        try:
            head = urlsplit(address if "//" in address else f"//{address}")
            if not head.hostname:  # Ray itself would wait for half a minute
                problem = "the address names no machine"
                raise ValueError(address)
            if head.port:  # Ray itself would wait for minutes
                socket.create_connection((head.hostname, head.port), timeout=SECONDS_TO_ANSWER).close()
                problem = f"{address} responds, but refused the connection"
                advice = (
                    "Check the port: 6379 belongs to ray:HOST:PORT, and 10001 to ray://HOST:PORT. Use the cluster's versions "
                    "of Ray and Python, and its token if it needs one"
                )
            elif address == "auto":
                problem = "this machine is not part of a Ray cluster"
            with warnings.catch_warnings(action="ignore"):  # Ray's news for its developers
                self.ray.init(address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError, OSError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise RunError(f"--on {name}: {problem} ({reason}). {advice}.") from error

    def start(self, remote_job: RemoteJob) -> Any:
        plan = replace(remote_job.job.plan, device="cuda" if self.gpus else "cpu")
        return self.task.remote(replace(remote_job, job=replace(remote_job.job, plan=plan)))

    def ended(self, handle: Any) -> list[str] | None:
        if not self.ray.wait([handle], timeout=0)[0]:
            return None
        try:
            sentences: list[str] = self.ray.get(handle)
        except self.ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            traced = isinstance(error, self.ray.exceptions.RayTaskError)  # such as: No module named 'remnant'
            sentences = [f"A Ray task was lost: {lines[-1 if traced else 0].rstrip('.')}."]
        return sentences

    def stop(self, handle: Any) -> None:
        self.ray.cancel(handle, force=True)

    def close(self) -> None:
        if self.connected_here:
            self.ray.shutdown()


def _run(remote_job: RemoteJob) -> list[str]:
    return remote_job()
