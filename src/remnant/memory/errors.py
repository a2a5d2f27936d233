"""What can go wrong, by name. Each message says what happened, to what, and what to do now."""

from __future__ import annotations


class UnsupportedError(ValueError):
    """The model has parameters that no rule covers."""


class ConsolidationError(RuntimeError):
    """A task's inputs could not be recorded; the memory is as it was before."""


class LeakError(RuntimeError):
    """Protected weights moved inside what is remembered."""


class StateError(ValueError):
    """A saved memory is damaged, foreign, or belongs to another model."""
