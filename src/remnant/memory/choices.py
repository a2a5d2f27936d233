"""What the options of `GPM` may be, and which of them exclude each other."""

from collections.abc import Callable
from math import inf
from typing import Any

from .subspaces.subspace import RANK_RULES

UNSUPPORTED = ("error", "freeze", "free")
CHOICES = {
    "bias": ("augment", "freeze", "free"),
    "keep_examples": (True, False),
    "lora": (None, "inputs"),
    "norm": ("freeze", "free", "per-task"),
    "rank_rule": RANK_RULES,
    "recall": (True, False),
    "unsupported": UNSUPPORTED,
}
REFUSED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "sketch is {sketch!r}: it must be a positive whole number, or None for exact Gram matrices.": lambda o: (
        o["sketch"] is not None and not (type(o["sketch"]) is int and o["sketch"] > 0)
    ),
    "own_rank is {own_rank!r}: it must be a whole number, or 0 for no own parts.": lambda o: (
        type(o["own_rank"]) is not int or o["own_rank"] < 0
    ),
    "soft is {soft!r}: it must be a number from 0, or None to protect all directions fully.": lambda o: (
        o["soft"] is not None and not (type(o["soft"]) in (int, float) and 0 <= o["soft"] < inf)
    ),
    'norm="per-task" needs recall=True: only `recall` brings back the norms of an old task.': lambda o: (
        o["norm"] == "per-task" and not o["recall"]
    ),
    "own_rank={own_rank} needs recall=True: only `recall` brings back the parts of an old task.": lambda o: (
        o["own_rank"] and not o["recall"]
    ),
    "soft={soft} cannot be combined with recall=True: recall needs directions that never move.": lambda o: (
        o["soft"] is not None and o["recall"]
    ),
    'lora="inputs" cannot be combined with recall=True. To get the network of a task back, save its adapter before '
    "`consolidate`.": lambda o: o["lora"] and o["recall"],
}
