"""The base of every error that a user can fix, and the name that somebody probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something the user can put right. The message says what happened and what to do; the command line shows only that."""


class RunError(UserError, RuntimeError):
    """A run, or a file, that the user can put right. The message says how."""


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The choice closest to `word`, or None. `-` and `_` count as the same letter."""
    candidates, word = list(choices), word.lower()
    if swapped := [choice for choice in candidates if sorted(choice) == sorted(word)]:
        return swapped[0]  # gmp is gpm, although sgp has as many letters in the same places
    for spelling in dict.fromkeys((word, word.replace("_", "-"), word.replace("-", "_"))):
        if near := get_close_matches(spelling, candidates, n=1, cutoff=cutoff):
            return near[0]
    return None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A sentence with the closest choice, or with all of them if none is close."""
    candidates = sorted(choices)
    if not candidates:
        return "It takes none."
    near = nearest(word, candidates)
    return f"Did you mean '{near}'?" if near else f"Choose from: {', '.join(candidates)}."
