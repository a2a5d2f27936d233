"""The base of every error that a user can fix, and the name that somebody probably meant."""

import sysconfig
import traceback
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

SEVERAL = 3  # names in one hint, at most


class UserError(Exception):
    """Something the user can put right. The message says what happened and what to do; the command line shows only that."""


class RunError(UserError, RuntimeError):
    """A run, or a file, that the user can put right. The message says how."""


def own_line(error: BaseException) -> str:
    """Names the last line in the error's traceback that is the user's, neither ours nor a library's: " (mine.py, line 9)"."""
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    elsewhere = ("<", str(Path(__file__).parent), *libraries)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(elsewhere)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The choice closest to `word`, or None. `-` and `_` count as the same letter."""
    candidates, word = list(choices), word.lower()
    for spelling in dict.fromkeys((word, word.replace("_", "-"), word.replace("-", "_"))):
        if near := get_close_matches(spelling, candidates, n=9, cutoff=cutoff):
            # Of equally close ones the one with the same letters: gmp is gpm rather than sgp.
            return max(near, key=lambda x: (SequenceMatcher(None, x, spelling).ratio(), sorted(x) == sorted(spelling)))
    return None


def did_you_mean(word: str, choices: Iterable[str], more: str = "") -> str:
    """A sentence with the closest choice and a few that begin with `word`, then `more`; or a sentence with all choices."""
    candidates = sorted(choices)
    if not candidates:
        return "It takes none."
    near = nearest(word, candidates)
    offered = [near] if near else []
    begun = [each for each in candidates if word and _plain(each).startswith(_plain(word))]
    if len(begun) <= SEVERAL:
        offered = list(dict.fromkeys(offered + begun))[:SEVERAL]
    if not offered:
        return f"Choose from: {', '.join(candidates)}."
    quoted = " or ".join(f"'{each}'" for each in sorted(offered))
    return f"Did you mean {quoted}?{more}"


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")
