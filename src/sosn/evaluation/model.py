"""Evaluate a model by name: its settings, its data, and the check that the classes are new to it."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from sosn.checkpoint.registry import load_with_recipe
from sosn.checkpoint.training_classes import (
    TrainingClasses,
    earlier_classes,
    last_training_classes,
    overlap,
    recorded_classes,
    same_classes,
    training_classes,
)
from sosn.data.bank import Bank
from sosn.data.dataset import open_bank
from sosn.data.dataset.lake import read_runs
from sosn.data.sampler import EpisodeSampler, Within, alphabets, leave_out_small
from sosn.errors import DataError, SosnWarning, UsageError
from sosn.evaluation.protocol import Evaluation, evaluate, evaluate_runs, evaluating
from sosn.kernel import engine
from sosn.method.base import Method, Statistics
from sosn.method.encoded import EncodedMethod
from sosn.method.test_time import TestTimeAugmentation
from sosn.recipe.override import override, refuse_option
from sosn.recipe.recipe import Recipe, data_keys
from sosn.util.device import resolve_device
from sosn.util.typed import annotations, check_options, parse


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of `sosn eval`. The defaults come from the recipe of the model."""

    way: int
    shot: int
    query: int
    episodes: int | None
    seed: int
    statistics: Statistics = "running"
    split: Literal["train", "val", "test"] = "val"
    data: str = "glyphs"
    device: str = "auto"
    within: Within = None
    runs: str | None = None  # a folder with the tasks of Lake et al., instead of drawn episodes
    precision: Literal["fp32", "bf16"] = "fp32"
    engine: Literal["auto", "plain"] = "auto"
    mirror: bool | None = None  # test-time augmentation; None: the model's
    scales: int | None = None
    turns: int | None = None

    def test_time(self, method: Method) -> TestTimeAugmentation:
        """Return the method's test-time augmentation with the changes of these settings."""
        given = {name: getattr(self, name) for name in annotations(TestTimeAugmentation)}
        return replace(method.test_time, **{name: value for name, value in given.items() if value is not None})

    def __str__(self) -> str:
        if self.runs:
            return f"{self.episodes} runs of {self.runs}"
        within = {None: "", "alphabet": " within one alphabet", "drawers": " within one alphabet, by one drawer and by another"}
        return f"{self.episodes} episodes of {self.data} {self.split}{within[self.within]}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        names = ("runs", "precision", "engine") if self.runs else ("split", "data", "within", "precision", "engine")
        return {name: getattr(self, name) for name in names}


def evaluate_model(
    model: str,
    overrides: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Evaluation, EvaluationSettings]:
    """Evaluate a model, given by name or folder, on the data of its recipe, or on other data.

    Refuses an untrained model, and classes of other splits that the model was trained on.
    """
    method, trained = load_with_recipe(model)
    method.check_trained()
    settings, recipe = evaluation_settings(trained, overrides)
    check_encoder(model, method, recipe, overrides)
    bank, settings = open_evaluated(recipe, settings, say)
    if method.parameter_count():  # a method without parameters has no training classes
        check_runs(model) if settings.runs else check_unseen(model, trained, recipe, bank, settings.split)
    if settings.split == "train" and say:
        say("split=train evaluates training classes: the accuracy says nothing about new classes")
    return evaluate_with(method, bank, settings, progress), settings


def check_encoder(model: str, method: Method, recipe: Recipe, overrides: Sequence[str]) -> None:
    """Refuse data whose classes the pretrained encoder of a model has seen, and such a model without data."""
    if not isinstance(method, EncodedMethod) or not method.encoder.has_seen:
        return
    if recipe.data.name in method.encoder.has_seen:
        raise UsageError(
            f"the encoder of model {model!r} was trained on ImageNet, which contains the classes of {recipe.data.name}: its "
            "accuracy there says nothing about new classes"
        )
    if not any(word.partition("=")[0] in ("data", "data.name") for word in overrides):
        raise UsageError(f"model {model!r} has no data of its own: give data=folder:PATH, a folder with one folder per class")


def open_evaluated(
    recipe: Recipe, settings: EvaluationSettings, say: Callable[[str], None] | None = None
) -> tuple[Bank, EvaluationSettings]:
    """Open the images to evaluate, on the device unless workers load them, and complete the settings.

    say is called with what is skipped, and with the number of tasks if it depends on the images.
    """
    device = resolve_device(settings.device)
    if settings.runs:
        bank = read_runs(Path(settings.runs)).to(device)
        runs = len(alphabets(bank.names))
        return bank, replace(settings, way=len(bank.names) // runs, shot=1, query=1, episodes=runs, within="alphabet")
    bank = open_bank(recipe.data.name, settings.split, recipe.data.min_images, **recipe.data.options)
    if recipe.data.leave_out_small:
        bank = leave_out_small(bank, settings.split, settings.shot, settings.query, say)
    sizes = alphabets(bank.names)
    small = sum(size < settings.way for size in sizes.values())
    if settings.within and small and say:
        say(f"{small} of {len(sizes)} alphabets have fewer than {settings.way} classes and are skipped")
    if settings.episodes is None:
        count = EpisodeSampler(bank, settings.way, settings.shot, settings.query, settings.within).usual_count
        settings = replace(settings, episodes=count)
        if settings.within == "drawers" and say:
            say(f"{count} tasks, two of each of {count // 2} alphabet{'s' * (count > 2)}")
    return bank if recipe.data.workers else bank.to(device), settings


def evaluate_with(
    method: Method, bank: Bank, settings: EvaluationSettings, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Evaluate a method on the device and in the precision of the settings."""
    device, half = resolve_device(settings.device), settings.precision == "bf16"
    with engine(settings.engine), torch.autocast(device.type, torch.bfloat16, enabled=half):
        if settings.runs:
            with evaluating(method, settings.test_time(method)):
                return evaluate_runs(method.to(device), bank, settings.statistics, progress)
        return evaluate(
            method.to(device), bank, settings.way, settings.shot, settings.query, settings.episodes, settings.seed,
            settings.statistics, progress, settings.within, test_time=settings.test_time(method),
        )  # fmt: skip


def check_runs(model: str) -> None:
    """Warn if a model was trained on characters of the evaluation alphabets, which the runs of Lake et al. use."""
    known = {name for one in training_classes(model, "omniglot") for name in one.classes}
    evaluated = {name for name in known if "images_evaluation" in name}
    if evaluated:
        warnings.warn(
            f"{model!r} was trained on {len(evaluated)} classes of the evaluation alphabets, which these runs use: for a fair "
            "figure, evaluate a model trained with data.partition=lake",
            SosnWarning,
            stacklevel=2,
        )


def check_unseen(model: str, trained: Recipe, recipe: Recipe, bank: Bank, split: str) -> None:
    """Refuse classes that the model, or the model it started from, was trained on."""
    if split == "train":
        return
    trained_on = earlier_classes(model, trained)
    if same_classes(trained.data, recipe.data):
        written = recorded_classes(model)
        if written is None and recipe.data != trained.data:  # otherwise the split is the same
            written = last_training_classes(model, trained)
        trained_on.append(TrainingClasses(trained.data, frozenset(written or ())))
    known = overlap(trained_on, recipe.data, bank.names)
    if known:
        raise DataError(
            f"{len(known)} {split} classes, such as {min(known)!r}, are training or tuning classes of {model!r}: evaluate on "
            "other classes; if only the split differs, use the data options of its recipe, or put the images into train/, "
            "val/ and test/ folders"
        )


def evaluation_settings(recipe: Recipe, overrides: Sequence[str]) -> tuple[EvaluationSettings, Recipe]:
    """Parse key=value words into settings, and return the recipe with the data that they name.

    A key is a setting or an option of the data, such as size or partition. Write data.KEY where both have the same name.
    """
    pairs = [word.partition("=")[::2] for word in overrides]
    for word, (key, text) in zip(overrides, pairs, strict=True):
        refuse_option(key)
        if not key or not text:
            raise UsageError(f"{word!r} is not key=value: write, for instance, shot=5")
    recipe = override(recipe, [f"data={text}" for key, text in pairs if key in ("data", "data.name")])
    known = annotations(EvaluationSettings)
    keys = {key: annotation for key, annotation in data_keys(recipe).items() if key not in known}
    of_data = [(key, text) for key, text in pairs if key.startswith("data.") or key in keys]
    settings = check_options({key: parse(text) for key, text in pairs if (key, text) not in of_data}, known | keys, "eval")
    if settings.get("runs"):
        fixed = ("way", "shot", "query", "episodes", "seed", "split", "data", "within", *(key for key, _ in of_data))
        for key, _ in pairs:
            if key in fixed:
                raise UsageError(f"{key} cannot be combined with runs, whose tasks are fixed: remove one of them")
    recipe = override(recipe, [f"data.{key.removeprefix('data.')}={text}" for key, text in of_data])
    sizes: tuple[int, int, int | None] = (recipe.val_shot, recipe.validation.val_query, recipe.validation.report_episodes)
    if settings.get("within") == "drawers":  # its tasks have fixed sizes
        sizes = (1, 1, None)
    defaults = EvaluationSettings(recipe.val_way, *sizes, recipe.validation.report_seed, data=recipe.data.name)
    return replace(defaults, **settings), recipe
