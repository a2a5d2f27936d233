"""How several runs share one GPU: each run is a generator, and a scheduler advances them in turn.

A run queues work on the GPU, which takes the host little time, and then yields, so that the scheduler can advance
another run while the GPU computes. A run yields one of two things:

- `None`: another run may continue now.
- a function (`Blocking`): "call this before you resume me." The function takes the host a long time: it starts a long
  CUDA graph, compiles a kernel or writes a file. A scheduler calls it in another thread and advances the other runs
  until it returns.

Such a function must not draw random numbers and must not change a global setting of torch. The process has only one of
each, and at that moment they belong to another run.

A function that takes part returns a `Work[Result]` and is called with `result = yield from function(…)`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")
Blocking = Callable[[], None]
Work = Generator[Blocking | None, None, Result]


def run_to_completion(work: Work[Result]) -> Result:
    """Runs a generator to its end, for a caller that has no other run to advance. Returns its result."""
    while True:
        try:
            blocking = next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
        if blocking is not None:
            blocking()
