"""A run's checkpoints: numbered files, of which the newest two are kept."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from remnant.memory import codec

from .files import RunError, explained, write

NAME = re.compile(r"checkpoint-(\d{6,})\.safetensors")
KEPT = 2


class Checkpoints:
    """The checkpoints of one folder. A damaged one does not count, and is removed after the next one is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[Path] = set()

    def numbered(self) -> dict[int, Path]:
        """The files by number, newest first."""
        with explained(self.folder / "*"):
            found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := NAME.fullmatch(path.name))]
        return dict(sorted(found, reverse=True))

    def save(self, state: dict[str, Any]) -> None:
        """Writes the next one, then removes all but the newest two. A complete one exists at every moment."""
        pieces = codec.pack(state)
        older = self.numbered()
        write(self.folder / f"checkpoint-{max(older, default=0) + 1:06d}.safetensors", *pieces)
        complete = [path for path in older.values() if path not in self._damaged]
        self._remove([*complete[KEPT - 1 :], *self._damaged.intersection(older.values())])

    def load(self) -> tuple[dict[str, Any] | None, str | None]:
        """The newest complete state or None, and a sentence for the user if a newer one is damaged."""
        problems = []
        for path in self.numbered().values():
            try:
                with explained(path):
                    state = codec.read(path)
            except codec.VersionError as error:
                raise RunError(f"{path}: {error}. Resume with the release that wrote it, or remove it.") from error
            except codec.DamagedError as error:
                self._damaged.add(path)
                problems.append(f"{path} is damaged: {error}.")
            else:
                return state, _note(problems, f"Continuing from the previous one, {path.name}.")
        return None, _note(problems, "No complete checkpoint is left: the run starts again.")

    def clear(self) -> None:
        self._remove(self.numbered().values())

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with explained(path), suppress(FileNotFoundError):
                os.unlink(path)
            self._damaged.discard(path)


def _note(problems: list[str], consequence: str) -> str | None:
    return " ".join([*problems, consequence]) if problems else None
