"""The classes that a model was trained on, including those of the weights it started from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sosn.checkpoint.registry import model_path
from sosn.checkpoint.storage import RUN_FILE, WEIGHTS_FILE, read_about
from sosn.data.dataset import open_bank
from sosn.errors import DataError, SosnError
from sosn.recipe.recipe import Recipe, from_table
from sosn.recipe.sections import DataSection
from sosn.util.files import read_json

FAMILIES = ({"mini-imagenet", "tiered-imagenet"}, {"cifar-fs", "fc100"})  # datasets that share class names


@dataclass(frozen=True)
class TrainingClasses:
    """Training classes from one dataset."""

    data: DataSection
    classes: frozenset[str]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.data.name, "options": self.data.options, "classes": sorted(self.classes)}

    @staticmethod
    def from_json(table: Mapping[str, Any]) -> "TrainingClasses":
        return TrainingClasses(DataSection(table["name"], options=dict(table["options"])), frozenset(table["classes"]))


def same_classes(first: DataSection, second: DataSection) -> bool:
    """Return whether a class name means the same in both datasets."""
    if _place(first.name) == _place(second.name):
        return first.name != "glyphs" or first.options["seed"] == second.options["seed"]
    return any({first.name, second.name} <= family for family in FAMILIES)


def _place(name: str) -> str:
    """Return the name of a dataset, with the path of a folder resolved."""
    prefix, colon, path = name.partition(":")
    return f"{prefix}:{Path(path).resolve()}" if colon else name


def overlap(known: Iterable[TrainingClasses], data: DataSection, names: Iterable[str]) -> set[str]:
    """Return those of the class names of `data` that are among the known training classes."""
    return {name for one in known if same_classes(one.data, data) for name in one.classes} & set(names)


def training_classes(model: str, dataset: str = "") -> list[TrainingClasses]:
    """Return all known training classes of a model's weights; with `dataset`, only those of that dataset."""
    about = read_about(model_path(model))
    if "recipe" not in about:
        return []
    recipe = from_table(about["recipe"], f"the recipe of model {model!r}")
    before = [one for one in earlier_classes(model, recipe) if dataset in ("", one.data.name)]
    if dataset not in ("", recipe.data.name):  # opening another dataset may take seconds
        return before
    return [TrainingClasses(recipe.data, frozenset(last_training_classes(model, recipe))), *before]


def earlier_classes(model: str, recipe: Recipe) -> list[TrainingClasses]:
    """Return the training classes of the weights that a model started from."""
    written = read_about(model_path(model)).get("seen")
    if written is not None:
        return [TrainingClasses.from_json(one) for one in written]
    if not recipe.training.start:
        return []
    try:
        return training_classes(recipe.training.start)
    except SosnError:  # the weights are not on this machine
        return []


def last_training_classes(model: str, recipe: Recipe) -> set[str]:
    """Return the classes of a model's last training: as its run recorded them, or else as its recipe finds them now."""
    written = recorded_classes(model)
    if written is not None:
        return written
    try:
        return set(open_bank(recipe.data.name, "train", recipe.data.min_images, **recipe.data.options).names)
    except DataError:  # the images are not on this machine
        return set()


def recorded_classes(model: str) -> set[str] | None:
    """Return the classes of a model's last training as its run recorded them, or None if it recorded none."""
    path = model_path(model)
    if path.name != WEIGHTS_FILE:
        return None
    run = path.with_name(RUN_FILE)
    written = (read_json(run) if run.is_file() else {}).get("data", {}).get("train", {}).get("classes")
    return None if written is None else set(written)
