"""Every run has its own random numbers, also when several runs share one process and one GPU."""

from __future__ import annotations

import torch
from torch import Tensor


class RandomState:
    """The state of torch's default generator for one run.

    Call `use` before the run continues; `get` and `set` serve checkpoints. On a GPU `use` points the default generator at
    this run's state, and graphs captured after it stay bound to that state. On a CPU a run has a process of its own.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            own = torch.Generator(device).manual_seed(seed)
            self._state = own.graphsafe_get_state()
        else:
            torch.manual_seed(seed)

    def use(self) -> None:
        """Makes torch's default generator draw this run's numbers."""
        if self.device.type == "cuda":
            self._default().graphsafe_set_state(self._state)

    def get(self) -> Tensor:
        """The state as bytes."""
        if self.device.type != "cuda":
            return torch.get_rng_state()
        self.use()
        return self._default().get_state()

    def set(self, state: Tensor) -> None:
        """Restores a state from `get`."""
        if self.device.type != "cuda":
            torch.set_rng_state(state.cpu())
        else:
            self.use()
            self._default().set_state(state.cpu())

    def _default(self) -> torch.Generator:
        torch.cuda.init()  # creates the default generators
        return torch.cuda.default_generators[self.device.index or 0]
