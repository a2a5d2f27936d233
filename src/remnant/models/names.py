"""What to say to someone who wrote a name we do not have."""

from collections.abc import Iterable
from difflib import get_close_matches


def no_such(kind: str, name: str, valid: Iterable[str]) -> str:
    """An error message that names the nearest valid name, if one is near, and all of them."""
    known = list(valid)
    nearest = get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"No such {kind}: {name!r}.{hint} There are: {', '.join(known)}."
