"""The errors of this room."""

from collections.abc import Iterator
from contextlib import contextmanager

from remnant.errors import UserError


class DataError(UserError, ValueError):
    """Data that is missing, damaged or does not fit together. The message says how to fix it."""


class MissingDataError(DataError):
    """A dataset is not prepared on this machine."""


class MissingExtraError(DataError):
    """An optional package is not installed."""


@contextmanager
def explaining_damage(problem: str, advice: str = "") -> Iterator[None]:
    """Turns any error into a DataError `problem (error). advice`: libraries can raise nearly anything on damaged files."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{problem} ({error}). {advice}".rstrip()) from error
