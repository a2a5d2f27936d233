"""The base of every error that a user can fix."""


class UserError(Exception):
    """Something the user can put right. The message says what happened and what to do; the command line shows only that."""
