"""The errors of this room."""

from remnant.errors import UserError


class DataError(UserError, ValueError):
    """Data that is missing, damaged or does not fit together. The message says how to fix it."""


class MissingDataError(DataError):
    """A dataset is not prepared on this machine."""


class MissingExtraError(DataError):
    """An optional package is not installed."""
