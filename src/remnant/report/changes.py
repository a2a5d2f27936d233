"""What sets a run's settings apart from its recipe, as one would write it on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from remnant.experiments.settings.resolve import Settings, SettingsError, resolve


def changes(settings: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What `--set` (and --protocol) would have to say to come from the recipe to this run's settings."""
    protocol = settings.get("protocol", "paper")
    try:
        recipe = resolve(settings["benchmark"], settings["method"], (), protocol).as_dict()
        Settings.from_dict(settings)
    except (SettingsError, KeyError, TypeError, ValueError, AttributeError):
        return None
    changed = [_key(change) for change in _differences(recipe, settings)]
    changed.sort(key=lambda change: change.startswith("no "))
    return (*[f"{protocol} protocol"] * (protocol != "paper"), *changed)


def _differences(recipe: Mapping[str, Any], own: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """`key=value` for what is other or new, `no key` for what is gone; a table that is gone is named once."""
    for key in sorted({*recipe, *own}):
        path, old, new = f"{above}{key}", recipe.get(key), own.get(key)
        if key not in own:
            # One form of a threshold replaces another whole: the new one says enough.
            if not (above == "options.threshold." and not own.keys() & recipe.keys()):
                yield f"no {path}"
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{path}.")
        elif old != new:
            yield from (f"{p}={v}" for p, v in flat({key: new}, above))


def _key(path: str) -> str:
    """As a person writes it: the method's own options have no section."""
    return path.replace("options.", "", 1) if path.startswith(("options.", "no options.")) else path


def flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        path = f"{above}{key}"
        if isinstance(value, dict):
            yield from flat(value, f"{path}.")
        else:
            yield path, _plain(value)


def _plain(value: Any) -> Any:
    """As TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, list) else value


def flat_settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings as lines: key and value, as `--set` writes them."""
    return [(_key(path), str(value)) for path, value in flat(settings)]
