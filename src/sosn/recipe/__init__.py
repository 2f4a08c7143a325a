"""Recipes: typed TOML files that describe a training run."""

from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe

__all__ = ["Recipe", "load_recipe", "override"]
