"""Find models by name: shipped with the package, or in a run folder."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sosn.checkpoint.storage import WEIGHTS_FILE, is_shipped, load_method, save_method, shelf
from sosn.errors import CheckpointError, UsageError
from sosn.method import Method
from sosn.method.test_time import TestTimeAugmentation
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe, from_table
from sosn.recipe.sections import ValidationSection
from sosn.util.spelling import nearest
from sosn.util.typed import annotations


def shipped_models() -> dict[str, dict[str, Any]]:
    """Return the cards of the shipped models by name."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(shelf().glob("*.json"))}


def model_path(name_or_path: str) -> Path:
    """Return the path of the weights of a shipped model, a run folder or a weights file."""
    if is_shipped(name_or_path):
        return shelf() / f"{name_or_path}.safetensors"
    path = Path(name_or_path)
    if path.is_dir():
        if not (path / WEIGHTS_FILE).is_file():
            raise CheckpointError(
                f"folder {name_or_path!r} has no {WEIGHTS_FILE}: it is not a run, or the run has not validated yet"
            )
        return path / WEIGHTS_FILE
    if path.is_file():
        return path
    known = shipped_models()
    raise UsageError(
        f"there is no model {name_or_path!r}{nearest(name_or_path, known)}: give a run folder or one of {', '.join(known)}"
    )


def model_card(name: str) -> dict[str, Any]:
    """Return the card of a shipped model: data, figures, recipe, terms of use, limits."""
    cards = shipped_models()
    if name not in cards:
        raise UsageError(f"there is no shipped model {name!r}{nearest(name, cards)}: choose one of {', '.join(cards)}")
    return cards[name]


def load(name_or_path: str | Path) -> Method:
    """Load a shipped model, a run folder or a weights file, in evaluation mode, on the CPU."""
    return load_method(model_path(str(name_or_path)))[0]


def load_with_recipe(name_or_path: str) -> tuple[Method, Recipe]:
    """Load a model and the recipe that it was trained with."""
    method, about = load_method(model_path(name_or_path))
    return method, from_table(about.get("recipe", {}), f"the recipe of model {name_or_path!r}")


def pack(source: Path, target: Path, options: Sequence[str] = ()) -> None:
    """Copy a model with half-precision weights, for shipping. The start and the device of its training are dropped.

    options: key=value words that change the recipe without changing the weights: title, keys of [validation] and [test_time],
    and options of [model] that fit the same weights, such as relation=ranked. Refuses other keys, and a file without a recipe.
    """
    method, about = load_method(source)
    if "recipe" not in about:
        raise CheckpointError(f"{str(source)!r} has no recipe: give the weights of a run")
    recipe = override(from_table(about["recipe"], "its recipe"), options)
    changed: dict[str, Any] = {}
    for word in options:
        key = word.partition("=")[0].rpartition(".")[2]
        if key in recipe.model.options:
            changed[key] = recipe.model.options[key]
        elif key != "title" and key not in annotations(ValidationSection) | annotations(TestTimeAugmentation):
            raise UsageError(
                f"{word!r} cannot be changed in a trained model: title, [validation], [test_time] and options of [model] can"
            )
    state = method.state_dict()
    method = type(method)(**method.config | changed | {"test_time": recipe.test_time})
    method.load_state_dict(state)
    method.trained = True
    recipe = replace(recipe, training=replace(recipe.training, start="", device="auto"))
    about = {key: value for key, value in about.items() if key not in ("method", "config")} | {"recipe": recipe.to_table()}
    save_method(target, method, about, torch.float16)
