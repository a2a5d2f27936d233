"""Suggests the name somebody probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The choice closest to `word`, or None. `-` and `_` count as the same letter."""
    known = list(choices)
    for spelling in dict.fromkeys((word.lower(), word.lower().replace("_", "-"), word.lower().replace("-", "_"))):
        if near := get_close_matches(spelling, known, n=1, cutoff=cutoff):
            return near[0]
    return None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A sentence with the closest choice, or with all of them if none is close."""
    known = sorted(choices)
    if not known:
        return "It takes none."
    near = nearest(word, known)
    return f"Did you mean '{near}'?" if near else f"Choose from: {', '.join(known)}."
