"""How several runs share one process and one GPU: they take turns, and each has its own random numbers.

Each run is a generator that queues work on the GPU and then yields, so that a scheduler can advance another run while the
GPU computes. It yields None, or a function to be called before the run is resumed (`Blocking`): one that keeps the host busy,
because it starts a long CUDA graph, compiles a kernel or writes a file. A scheduler calls it in another thread. It must not
draw random numbers or change a global setting of torch, because at that moment they belong to another run.

A function that takes part returns a `Work[Result]` and is called with `result = yield from function(…)`.
"""

from collections.abc import Callable, Generator
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Blocking = Callable[[], None]
Work = Generator[Blocking | None, None, Result]


def run_to_completion(work: Work[Result]) -> Result:
    """Runs a generator to its end, for a caller that has no other run to advance. Returns its result."""
    while True:
        try:
            blocking = next(work)
        except StopIteration as end:
            return end.value
        if blocking is not None:
            blocking()


class RandomState:
    """The state of torch's default generator for one run.

    On a GPU `use` points the default generator at this run's state before the run continues, and graphs that are captured
    then stay bound to that state. On a CPU a run has its own process.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self._state = torch.Generator(device).manual_seed(seed).graphsafe_get_state()
        else:
            torch.manual_seed(seed)

    def use(self) -> torch.Generator:
        """Makes torch's default generator draw this run's numbers, and returns it."""
        if self.device.type != "cuda":
            return torch.default_generator
        torch.cuda.init()  # creates the default generators
        default = torch.cuda.default_generators[self.device.index or 0]
        default.graphsafe_set_state(self._state)
        return default

    def get(self) -> Tensor:
        """The state as bytes, for a checkpoint."""
        return self.use().get_state()

    def set(self, state: Tensor) -> None:
        """Restores a state from `get`."""
        self.use().set_state(state.cpu())
