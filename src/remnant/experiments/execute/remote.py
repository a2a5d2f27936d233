"""Jobs on other machines. Run folders are on storage that all of them share, and progress comes through it as well."""

import json
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from remnant.data import data_root
from remnant.errors import RunError
from remnant.training import EpochDone

from ..runs import RunFolder
from .launch import Job
from .one_run import Progress
from .places import OnMessage, WorkerError, failures

MESSAGES = ".messages.jsonl"
POLL = 0.5  # seconds between two checks of the jobs, and between two writes of a job's messages
PATIENCE = 180.0  # seconds until a file system releases the locks of a dead machine, and shows what another one wrote


@dataclass
class RemoteJob:
    """A job with what it needs to run on another machine, where it is called."""

    job: Job
    cwd: Path = field(default_factory=Path.cwd)  # where relative paths of the user's own files start
    data: Path = field(default_factory=lambda: data_root().absolute())  # the same folder on every machine

    def __call__(self) -> list[str]:
        """Runs the job on the machine that received it. Returns a sentence for each error."""
        os.environ["REMNANT_DATA"] = str(self.data)
        with suppress(OSError):
            os.chdir(self.cwd)
        messages = Messages(self.job)
        seed = self.job.folders[0].seed
        try:
            return failures(
                self.job,
                lambda: self._run(messages),
                lambda trace: messages.send(Progress(seed, note=trace, serious=True)),
            )
        finally:
            messages.flush()

    def _run(self, messages: "Messages") -> None:
        plan, second_try = self.job.plan, messages.path.exists()
        folders = []
        for folder in self.job.folders:
            if (found := RunFolder.find(plan.root, plan.settings, folder.seed)) is None:
                raise RunError(
                    f"{socket.gethostname()} does not see the run in {plan.root / folder.relative_path}. All machines must "
                    "share the folder of the runs: choose one on shared storage with --runs."
                )
            # The machine that ran this job before may still be writing, or its lock may outlive it for a while.
            with found.lock(PATIENCE if second_try else 0):
                folders.append(found)
        messages.flush()  # which marks the first try
        replace(self.job, folders=folders).run(messages.send)


class Messages:
    """A job's progress in a file of its first run folder: JSON lines, written on one machine and read on another."""

    def __init__(self, job: Job) -> None:
        self.path = job.plan.root / job.folders[0].relative_path / MESSAGES
        self._unsent: list[str] = []
        self._written, self._position = 0.0, 0

    def send(self, progress: Progress) -> None:
        self._unsent.append(json.dumps(asdict(progress)) + "\n")
        if progress.epoch is None or time.monotonic() - self._written > POLL:
            self.flush()

    def flush(self) -> None:
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:  # lost progress must not stop a run
            file.write("".join(self._unsent))
        self._unsent, self._written = [], time.monotonic()

    def receive(self) -> Iterator[Progress]:
        """Yields what was sent since the last call. Leaves out lines that two machines wrote over each other."""
        data = b""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        for line in data.splitlines():
            with suppress(ValueError, TypeError, KeyError):
                content = json.loads(line)
                epoch = EpochDone(**content["epoch"]) if content["epoch"] else None
                yield Progress(**{**content, "epoch": epoch, "row": tuple(content["row"])})


class Remote(ABC):
    """A place on other machines. A subclass starts a job there, tells whether it has ended, and stops it."""

    gpus = 0
    note = ""  # for the user, before the first job starts

    @abstractmethod
    def start(self, remote_job: RemoteJob) -> Any:
        """Starts a job. Returns a handle for it."""

    @abstractmethod
    def ended(self, handle: Any) -> list[str] | None:
        """Returns None while the job waits or runs, and then a sentence for each error."""

    @abstractmethod
    def stop(self, handle: Any) -> None:
        """Ends the job."""

    def close(self) -> None:  # noqa: B027
        """Disconnects, if there is a connection."""

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Runs all jobs, as `Place` describes."""
        running: dict[Job, tuple[Any, Messages]] = {}
        try:
            for job in jobs:
                messages = Messages(job)
                messages.path.unlink(missing_ok=True)
                plan = replace(job.plan, root=job.plan.root.absolute())
                running[job] = self.start(RemoteJob(replace(job, plan=plan))), messages
            while running:
                time.sleep(POLL)
                for job, (handle, messages) in list(running.items()):
                    sentences = self.ended(handle)
                    for progress in messages.receive():
                        on_message(job, progress)
                    if sentences is None:
                        continue
                    for sentence in sentences:
                        on_message(job, WorkerError(sentence))
                    if not sentences:
                        _wait_for_results(job)
                    del running[job]
                    messages.path.unlink(missing_ok=True)
        finally:
            for handle, _ in running.values():
                self.stop(handle)


def _wait_for_results(job: Job) -> None:
    """Waits for results on network storage, which caches that a file is missing until the folder is read again."""
    end = time.monotonic() + PATIENCE
    for folder in job.folders:
        while not folder.finished and folder.path.is_dir() and time.monotonic() < end:
            os.listdir(folder.path)
            time.sleep(POLL)
