"""`metrics.jsonl`: one JSON object per line, appended after every epoch."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remnant.files import write_all

from .files import as_number, explained, read, write

Line = dict[str, Any]


class MetricsLog:
    """A log of JSON lines. A last line that a kill cut short is ignored, and removed by the next append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: Line) -> None:
        """Adds one line. If that fails, the file stays as it was."""
        data = json.dumps(line, default=as_number).encode() + b"\n"
        with explained(self.path), self.path.open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                end = self.path.read_bytes().rfind(b"\n") + 1
                file.truncate(end)
            try:
                write_all(file.fileno(), data)
            except BaseException:
                file.truncate(end)
                raise

    def lines(self) -> list[Line]:
        return [line for _, line in self._read()]

    def keep_while(self, wanted: Callable[[Line], bool]) -> None:
        """Removes the first line that is not wanted and every line after it."""
        kept = []
        for text, line in self._read():
            if not wanted(line):
                break
            kept.append(text)
        if b"".join(kept) != (read(self.path) or b""):
            write(self.path, b"".join(kept))

    def sync(self) -> None:
        """Makes the lines survive a power cut."""
        if self.path.exists():
            with explained(self.path), self.path.open("rb") as file:
                os.fsync(file.fileno())

    def _read(self) -> list[tuple[bytes, Line]]:
        """Each line with its bytes, except lines that are not complete JSON objects."""
        found = []
        for text in (read(self.path) or b"").splitlines(keepends=True):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and text.endswith(b"\n"):
                found.append((text, line))
        return found
