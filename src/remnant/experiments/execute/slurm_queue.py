"""Which SLURM jobs are still in the queue. Only squeue knows on every cluster: sacct needs an accounting database."""

import subprocess
import time

ASK_EVERY = 20.0  # seconds between two looks at the queue
LOST_AFTER = 90.0  # seconds out of the queue, because network storage may show a job's result late


class Queue:
    """The jobs of this user, with the time when each was last in the queue."""

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
