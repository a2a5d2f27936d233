"""Lines of JSON, appended as a run goes on; a line is whole or it does not count."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import explained, write_all, read, write
from .json_file import number

Line = dict[str, Any]


class MetricsLog:
    """One JSON object per line. A last line cut short by a kill is passed over, and cut off by the next append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: Line) -> None:
        """Adds one line; where that fails, the file is as it was."""
        data = json.dumps(line, default=number).encode() + b"\n"
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
        """Drops the first line that is not wanted and everything after it."""
        kept = []
        for text, line in self._read():
            if not wanted(line):
                break
            kept.append(text)
        if b"".join(kept) != (read(self.path) or b""):
            write(self.path, b"".join(kept))

    def sync(self) -> None:
        """Makes what is there survive a power cut."""
        if self.path.exists():
            with explained(self.path), self.path.open("rb") as file:
                os.fsync(file.fileno())

    def _read(self) -> list[tuple[bytes, Line]]:
        """Each line with its bytes. One that is no JSON object (half of one, or rotten) tells nothing: it is left out."""
        found = []
        for text in (read(self.path) or b"").splitlines(keepends=True):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and text.endswith(b"\n"):
                found.append((text, line))
        return found
