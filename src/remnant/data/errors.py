"""The errors of this room."""

from remnant.errors import UserError


class DataError(UserError, ValueError):
    """Data that is missing, damaged or does not fit together. The message says how to fix it."""


class MissingDataError(DataError, FileNotFoundError):
    """A dataset is not prepared on this machine."""

    def __str__(self) -> str:  # FileNotFoundError would print errno and filename
        return str(self.args[0])


class MissingExtraError(DataError, ImportError):
    """An optional package is not installed."""
