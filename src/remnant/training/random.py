"""Every run has random numbers of its own, also where several runs share one process and one GPU."""

from __future__ import annotations

import torch
from torch import Tensor


class RandomState:
    """The state of torch's default generator for one run: `use` it before the run's turn, `get` and `set` it for checkpoints.

    On a GPU the default generator is pointed at this run's state, which graphs captured meanwhile stay bound to. On a CPU a
    run has its process to itself.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            own = torch.Generator(device).manual_seed(seed)
            self._state = own.graphsafe_get_state()
        else:
            torch.manual_seed(seed)

    def use(self) -> None:
        if self.device.type == "cuda":
            _default(self.device).graphsafe_set_state(self._state)

    def get(self) -> Tensor:
        """The state as bytes."""
        if self.device.type == "cuda":
            self.use()
            return _default(self.device).get_state()
        return torch.get_rng_state()

    def set(self, state: Tensor) -> None:
        if self.device.type == "cuda":
            self.use()
            _default(self.device).set_state(state.cpu())
        else:
            torch.set_rng_state(state.cpu())


def _default(device: torch.device) -> torch.Generator:
    torch.cuda.init()  # before it there is none
    return torch.cuda.default_generators[device.index or 0]
