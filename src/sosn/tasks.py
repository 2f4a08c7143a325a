"""Jobs of the command line that are more than one call, free of printing."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from sosn.data import Bank, leave_out_small, open_bank
from sosn.data.sampler import Within, alphabets
from sosn.device import check_bf16, resolve_device
from sosn.errors import DataError, SosnWarning, UsageError
from sosn.evaluation import Evaluation, evaluate
from sosn.importing import write_model
from sosn.kernel import engine
from sosn.kind import THUMBNAIL, choose_model, kind_of
from sosn.method.base import Method, Statistics
from sosn.models import load_with_recipe, shipped_models
from sosn.pictures import list_classes, read_pictures
from sosn.recipe import Recipe, override, refuse_option
from sosn.storage import WEIGHTS_FILE
from sosn.training.seen import Seen, overlap, same_classes, seen_before, trained_classes, written_classes
from sosn.tuning import Tuned, tune
from sosn.typed import annotations, check_options, parse


@dataclass(frozen=True)
class EvaluationSettings:
    """What `sosn eval` can be told. Where nothing is said, the run's own recipe decides."""

    way: int
    shot: int
    query: int
    episodes: int
    seed: int
    statistics: Statistics = "running"
    split: Literal["train", "val", "test"] = "val"
    data: str = "glyphs"
    device: str = "auto"
    within: Within = None
    precision: Literal["fp32", "bf16"] = "fp32"
    engine: Literal["auto", "plain"] = "auto"


def evaluate_model(
    model: str,
    overrides: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Evaluation, EvaluationSettings]:
    """Evaluate a model by name or folder on the data it was trained for, or on other data."""
    method, trained = load_with_recipe(model)
    method.check_trained()
    settings, recipe = evaluation_settings(trained, overrides)
    bank = open_evaluated(recipe, settings, say)
    if method.parameter_count():  # or there is nothing that could have been trained
        check_unseen(model, trained, recipe, bank, settings.split)
    return evaluate_with(method, bank, settings, progress), settings


def open_evaluated(recipe: Recipe, settings: EvaluationSettings, say: Callable[[str], None] | None = None) -> Bank:
    """The images of a recipe's data, on the device unless workers are to load them. say is told what is left out."""
    device = resolve_device(settings.device)
    bank = open_bank(recipe.data.name, settings.split, recipe.data.min_images, **recipe.data.options)
    if recipe.data.leave_out_small:
        bank = leave_out_small(bank, settings.split, settings.shot, settings.query, say)
    if settings.within and say:
        sizes = alphabets(bank.names)
        small = sum(size < settings.way for size in sizes.values())
        say(f"{small} of {len(sizes)} alphabets have fewer than {settings.way} classes and are left out")
    return bank if recipe.data.workers else bank.to(device)


def evaluate_with(
    method: Method, bank: Bank, settings: EvaluationSettings, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Evaluate a method on the device of the settings, in their precision."""
    device, half = resolve_device(settings.device), settings.precision == "bf16"
    if half and device.type == "cpu":
        check_bf16()
    with engine(settings.engine), torch.autocast(device.type, torch.bfloat16, enabled=half):
        return evaluate(
            method.to(device), bank, settings.way, settings.shot, settings.query, settings.episodes, settings.seed,
            settings.statistics, progress, settings.within,
        )  # fmt: skip


def check_unseen(model: str, trained: Recipe, recipe: Recipe, bank: Bank, split: str) -> None:
    """Refuse classes that the model, or what it was started from, was trained on: they are split otherwise now."""
    if split == "train":
        return
    seen = seen_before(model, trained)
    if same_classes(trained.data, recipe.data):
        written = written_classes(model)
        if written is None and recipe.data != trained.data:  # else they are split as they were
            written = trained_classes(model, trained)
        seen.append(Seen(trained.data, frozenset(written or ())))
    known = overlap(seen, recipe.data, bank.names)
    if known:
        raise DataError(
            f"{len(known)} classes of {split}, such as {min(known)!r}, are classes that {model!r} was trained on: the "
            "images are split otherwise here; use the options of its recipe, or give images train/, val/ and test/ folders"
        )


def evaluation_settings(recipe: Recipe, overrides: Sequence[str]) -> tuple[EvaluationSettings, Recipe]:
    """Words that are settings, and words for the data (data.size=…)."""
    pairs = [word.partition("=")[::2] for word in overrides]
    for word, (key, text) in zip(overrides, pairs, strict=True):
        refuse_option(key)
        if not key or not text:
            raise UsageError(f"{word!r} is no key=value: write for instance shot=5")
    known = annotations(EvaluationSettings)
    own = check_options({k: parse(t) for k, t in pairs if not _about_data(k)}, known, "eval")
    about_data = [f"{key}={text}" for key, text in pairs if _about_data(key) or key == "data"]
    recipe = override(recipe, about_data)
    defaults = EvaluationSettings(
        recipe.val_way, recipe.val_shot, recipe.validation.val_query, recipe.validation.report_episodes,
        recipe.validation.report_seed, data=recipe.data.name,
    )  # fmt: skip
    return replace(defaults, **own), recipe


def _about_data(key: str) -> bool:
    return key.startswith("data.") or key in ("min_images", "leave_out_small")


def tune_model(
    support: Path, model: str, out: Path, steps: int, seed: int, progress: Callable[[int, int], None] | None = None
) -> tuple[str, Tuned]:
    """Tune a model on a folder of classes and, if that helps, write it to a folder: the model's name, and what came of it."""
    if (out / WEIGHTS_FILE).exists():
        raise UsageError(f"{str(out)!r} holds a model already: choose another --out")
    files, labels = list_classes(support)
    name = model
    if model == "auto":
        name, note = choose_model(kind_of(read_pictures(files, THUMBNAIL, 3)), shipped_models())
        if note:
            warnings.warn(note, SosnWarning, stacklevel=2)
    method, recipe = load_with_recipe(name)
    images = read_pictures(files, method.preprocessing.size, method.preprocessing.channels)
    names = tuple(dict.fromkeys(labels))
    bank = Bank(images, torch.tensor([names.index(label) for label in labels]), names)
    result = tune(method, bank, steps, seed, progress)
    if result.method is not None:
        write_model(out, result.method, replace(recipe, title=f"{name}, tuned on {len(names)} classes of {support.name}"))
    return name, result
