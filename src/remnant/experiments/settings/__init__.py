"""The settings of a run: a recipe, and what `--set` changes in it."""

from .recipe import RECIPES, PaperResult, recipe
from .resolve import Settings, describe, resolve

__all__ = ["RECIPES", "PaperResult", "Settings", "describe", "recipe", "resolve"]
