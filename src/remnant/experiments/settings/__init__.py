"""The settings of a run: a recipe, and what `--set` changes in it."""

from .recipe import PaperResult, Recipe, recipe, recipe_names
from .resolve import Settings, describe, resolve

__all__ = ["PaperResult", "Recipe", "Settings", "describe", "recipe", "recipe_names", "resolve"]
