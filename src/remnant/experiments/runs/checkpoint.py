"""A run's checkpoints: numbered, the newest two kept, the newest whole one loaded."""

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
    """Those of one folder. A checkpoint known to be damaged is not counted, and goes when the next one is in place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[Path] = set()

    def numbered(self) -> dict[int, Path]:
        """Newest first."""
        with explained(self.folder / "*"):
            found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := NAME.fullmatch(path.name))]
        return dict(sorted(found, reverse=True))

    def save(self, state: dict[str, Any]) -> None:
        """Writes the next one, then removes all but the newest two: at no moment is there none."""
        pieces = codec.pack(state)
        older = self.numbered()
        write(self.folder / f"checkpoint-{max(older, default=0) + 1:06d}.safetensors", *pieces)
        whole = [path for path in older.values() if path not in self._damaged]
        self._remove([*whole[KEPT - 1 :], *self._damaged.intersection(older.values())])

    def load(self) -> tuple[dict[str, Any] | None, str | None]:
        """The newest whole one, and a sentence where that is not the newest; None where there is none."""
        troubles = []
        for path in self.numbered().values():
            try:
                with explained(path):
                    state = codec.read(path)
            except codec.VersionError as error:
                raise RunError(f"{path}: {error}. Resume with the release that wrote it, or remove it.") from error
            except codec.DamagedError as error:
                self._damaged.add(path)
                troubles.append(f"{path} is damaged: {error}.")
            else:
                return state, " ".join([*troubles, f"Going on from the one before, {path.name}."]) if troubles else None
        return None, " ".join([*troubles, "No whole checkpoint is left: the run starts anew."]) if troubles else None

    def clear(self) -> None:
        self._remove(self.numbered().values())

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with explained(path), suppress(FileNotFoundError):
                os.unlink(path)
            self._damaged.discard(path)
