"""Load recipes by name, file or run folder."""

import os
import tomllib
from pathlib import Path

from sosn.errors import UsageError
from sosn.recipe.recipe import Recipe, from_table
from sosn.util.files import resource
from sosn.util.spelling import nearest

RECIPE_FILE = "recipe.toml"  # in a run folder


def shipped() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(file.stem for file in resource("recipe", "shipped").glob("*.toml"))


def recipe_text(name_or_path: str) -> str:
    """Return the TOML text of a shipped recipe, a file or a run folder. Refuses an unknown name."""
    if name_or_path in shipped():
        return resource("recipe", "shipped", f"{name_or_path}.toml").read_text("utf-8")
    path = Path(name_or_path)
    if path.is_dir():
        path = path / RECIPE_FILE
    if not path.is_file():
        raise UsageError(
            f"there is no recipe {name_or_path!r}{nearest(name_or_path, shipped())}: give a file, a run folder, or one of "
            f"{', '.join(shipped())}"
        )
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{str(path)!r} is not a recipe: TOML is text, and this file is not") from None


def load_recipe(name_or_path: str) -> Recipe:
    """Load a recipe by name, file or run folder. Refuses invalid TOML, unknown keys and wrong types."""
    try:
        table = tomllib.loads(recipe_text(name_or_path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"recipe {name_or_path!r} is not valid TOML: {error}") from None
    return from_table(table, f"recipe {name_or_path!r}")


def as_recipe(recipe: Recipe | str | os.PathLike[str]) -> Recipe:
    """Return a Recipe unchanged, or load it by name, file or run folder."""
    if isinstance(recipe, str | os.PathLike):
        return load_recipe(os.fspath(recipe))
    if not isinstance(recipe, Recipe):
        raise UsageError(f"a recipe is {type(recipe).__name__}; pass a Recipe, or its name, file or run folder")
    return recipe
