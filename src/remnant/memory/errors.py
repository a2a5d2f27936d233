"""The errors of a memory. Each message says what happened, where, and what to do."""

from remnant.errors import UserError


class UnsupportedError(UserError, ValueError):
    """The model has parameters that no rule covers."""


class ConsolidationError(UserError, RuntimeError):
    """A task's inputs could not be recorded. The memory is as it was before."""


class LeakError(UserError, RuntimeError):
    """Protected weights moved inside the remembered subspaces."""


class StateError(UserError, ValueError):
    """A saved memory is damaged, was not written by `GPM.save`, or belongs to another model."""
