"""A run as a typed, commented TOML file."""

from sosn.recipe.recipe import Recipe, load_recipe, override

__all__ = ["Recipe", "load_recipe", "override"]
