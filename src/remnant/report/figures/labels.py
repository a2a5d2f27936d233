"""A method's name in a figure; with a star where its settings are not the recipe's, and what they are below; and what
one seed cannot show."""

from __future__ import annotations

from collections.abc import Iterable

from ..names import short_title
from ..variants import Variant


def label(variant: Variant) -> str:
    return short_title(variant.method) + ("" if variant.as_in_recipe else " *")


def label_with_seeds(variant: Variant) -> str:
    """Where deviations are drawn: without any, one seed would look like seeds that agree."""
    return label(variant) + (" (one seed)" if len(variant.runs) == 1 else "")


def footnote(variants: Iterable[Variant]) -> str:
    """Empty where all are as in their recipes."""
    others = [f"{short_title(variant.method)}: {variant.label}" for variant in variants if not variant.as_in_recipe]
    return f"* Not the recipe's settings. {'; '.join(others)}." if others else ""
