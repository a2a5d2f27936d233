"""Options that have a value for every layer."""

from collections.abc import Iterable, Mapping

from remnant.memory import by_layer


def for_every_layer(value: float | Mapping[str, float], layers: Iterable[str], option: str) -> dict[str, float]:
    """Returns layer → value, from one value for all or from a table of layer patterns that must cover all of them."""
    names = list(layers)
    found = by_layer(value if isinstance(value, Mapping) else {"*": value}, names, option)
    for name in names:
        if name not in found:
            raise ValueError(f"No pattern of {option} matches layer {name!r}. Add one, or '*' for all the others.")
    return found
