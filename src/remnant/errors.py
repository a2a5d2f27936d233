"""The base of every error that a user can fix."""


class UserError(Exception):
    """Something the user can put right. The message says what happened and what to do; the command line shows only that."""


def shorten(text: str, most: int = 200) -> str:
    """The beginning of a long text, for use in an error message."""
    return text if len(text) <= most else f"{text[:most]}…"
