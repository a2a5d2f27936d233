"""State that is declared once: saving, loading, counting bytes and warming up a captured step all follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from remnant.errors import UserError


class Stateful:
    """An object that declares its state with `keep`, as torchmetrics does with `add_state`."""

    device: torch.device
    _kept: dict[str, tuple[bool, bool | Callable[[Any], int]]]  # name → per_step, counted
    _initial: dict[str, Any]  # marks of all other attributes before the first task
    _derived: set[str]  # the attributes that refresh() recomputes

    def keep(
        self, name: str, value: Any, *, per_step: bool = True, counted: bool | Callable[[Any], int] = True
    ) -> None:
        """Sets the attribute `name` and declares it as state.

        Args:
            name: The attribute. It may be assigned again later, except in a step.
            value: A tensor, number or string, a list or dict of these, or an object with `state_dict` and
                `load_state_dict`, such as a module.
            per_step: Whether a step may change it in place. False saves a copy of large tensors when steps are captured.
            counted: Whether its bytes count as the method's memory, or a function that counts them.
        """
        vars(self).setdefault("_kept", {})[name] = per_step, counted
        setattr(self, name, value)

    def refresh(self) -> None:
        """Recomputes attributes that follow from the kept state. Called when a task starts and after a state is loaded."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the kept state, which shares memory with the object.

        Raises:
            UserError: If an attribute has changed that is neither kept nor recomputed by `refresh`: a resumed run would
                not have it.
        """
        self._check_declared()
        values = {name: getattr(self, name) for name in self._kept}
        return {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state. Tensors keep their place in memory where shapes agree: captured steps read them there."""
        for name in self._kept:
            setattr(self, name, _restored(getattr(self, name), state[name], self.device))
        self._refresh()

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
        total = 0
        for name, (_, counted) in self._kept.items():
            if callable(counted):
                total += counted(getattr(self, name))
            elif counted:
                total += sum(getattr(leaf, "nbytes", 0) for leaf in _leaves(getattr(self, name)))
        return total

    def _refresh(self) -> None:
        before = self._marks()
        vars(self).setdefault("_initial", before)
        self.refresh()
        changed = {name for name, mark in self._marks().items() if mark != before.get(name)}
        vars(self).setdefault("_derived", set()).update(changed)

    def _check_declared(self) -> None:
        now = self._marks() if "_initial" in vars(self) else {}
        for name in now:
            if name not in self._derived and now[name] != self._initial.get(name):
                kind = type(self).__name__
                raise UserError(
                    f"{kind}.{name} has changed, but no checkpoint would hold it, so a resumed run would differ. Declare it "
                    f"in {kind}.__init__ with self.keep({name!r}, …), or recompute it in {kind}.refresh()."
                )

    def _marks(self) -> dict[str, list[Any]]:
        """Marks that change with the undeclared attributes. A tensor's is read on the host: the device need not finish."""
        declared = {id(leaf) for name in self._kept for leaf in _leaves(getattr(self, name))}

        def mark(leaf: Any) -> Any:
            if isinstance(leaf, Tensor) and id(leaf) not in declared:
                return id(leaf), None if leaf.is_inference() else leaf._version
            return repr(leaf) if isinstance(leaf, int | float | str) else None  # other objects are not looked into

        others = vars(self).keys() - self._kept.keys() - {"task", "_kept", "_initial", "_derived"}
        return {name: [mark(leaf) for leaf in _leaves(vars(self)[name])] for name in sorted(others)}


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
        own = own if isinstance(own, dict) else {}
        return {key: _restored(own.get(key), value, device) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        own = own if isinstance(own, list | tuple) and len(own) == len(saved) else [None] * len(saved)
        return [_restored(mine, value, device) for mine, value in zip(own, saved, strict=True)]
    return saved
