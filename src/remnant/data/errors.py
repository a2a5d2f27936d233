"""The one error of this room, and the way it suggests a name."""

from collections.abc import Iterable
from difflib import get_close_matches


class DataError(ValueError):
    """Something about data that the person at the keyboard can put right; the message says how."""


class MissingDataError(DataError, FileNotFoundError):
    """A prepared set is not on this machine."""

    def __str__(self) -> str:  # FileNotFoundError would print errno and filename
        return str(self.args[0])


class MissingExtraError(DataError, ImportError):
    """An optional package is not installed."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The nearest choice as a sentence, or all of them where none is near."""
    known = sorted(choices)
    if not known:
        return "It takes none."
    near = get_close_matches(word.lower().replace("_", "-"), known, n=1, cutoff=0.5)
    near = near or get_close_matches(word.lower().replace("-", "_"), known, n=1, cutoff=0.5)
    return f"Did you mean '{near[0]}'?" if near else f"Choose from: {', '.join(known)}."
