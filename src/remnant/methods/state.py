"""State that is declared once: saving, loading, counting bytes and warming up a captured step all follow from it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Stateful:
    """An object that declares its state with `keep`, as a module does with `register_buffer`. Only kept state is saved."""

    device: torch.device
    _kept: dict[str, tuple[bool, bool]]  # name → per_step, counted

    def keep(self, name: str, value: Any, *, per_step: bool = True, counted: bool = True) -> None:
        """Sets the attribute `name` and declares it as state.

        Args:
            name: The attribute. It may be assigned again later, except in a step.
            value: A tensor, number or string, a list or dict of these, or an object with `state_dict` and
                `load_state_dict`, such as a module.
            per_step: Whether a step may change it in place. False saves a copy of large tensors when steps are captured.
            counted: Whether its bytes count as the method's memory.
        """
        vars(self).setdefault("_kept", {})[name] = per_step, counted
        setattr(self, name, value)

    def refresh(self) -> None:
        """Recomputes attributes that follow from the kept state. Called when a task starts and after a state is loaded."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the kept state, which shares memory with the object."""
        values = {name: getattr(self, name) for name in self._kept}
        return {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state. Tensors keep their place in memory where shapes agree: captured steps read them there."""
        for name in self._kept:
            setattr(self, name, _restored(getattr(self, name), state[name], self.device))
        self.refresh()

    def step_tensors(self) -> list[Tensor]:
        """Returns every tensor that a step may change in place."""
        found: list[Tensor] = []
        for name, (per_step, _) in self._kept.items():
            for leaf in _leaves(getattr(self, name)):
                if isinstance(leaf, Stateful):
                    found += leaf.step_tensors()
                elif per_step and isinstance(leaf, Tensor):
                    found.append(leaf)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes kept from one task to the next, without the network."""
        values = [getattr(self, name) for name, (_, counted) in self._kept.items() if counted]
        return sum(getattr(leaf, "nbytes", 0) for leaf in _leaves(values))


def _leaves(value: Any) -> Iterator[Any]:
    """The tensors, numbers and objects inside lists, dicts and modules."""
    if isinstance(value, nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


@torch.no_grad()
def _restored(own: Any, saved: Any, device: torch.device) -> Any:
    if hasattr(own, "load_state_dict"):
        own.load_state_dict(saved)
        return own
    if isinstance(saved, Tensor):
        same_shape = isinstance(own, Tensor) and own.shape == saved.shape
        return own.copy_(saved) if same_shape else saved.to(device, copy=True)
    if isinstance(saved, dict):
        return {key: _restored((own or {}).get(key), value, device) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        return list(_restored(dict(enumerate(own or ())), dict(enumerate(saved)), device).values())
    return saved
