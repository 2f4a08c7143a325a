"""Jobs of the command line that are more than one call, free of printing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sosn.data import open_bank
from sosn.device import resolve_device
from sosn.errors import UsageError
from sosn.evaluation import Evaluation, evaluate
from sosn.method.base import Statistics
from sosn.models import load_with_recipe
from sosn.recipe import Recipe, override
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


def evaluate_model(
    model: str, overrides: Sequence[str], progress: Callable[[int, int], None] | None = None
) -> tuple[Evaluation, EvaluationSettings]:
    """Evaluate a model by name or folder on the data it was trained for, or on other data."""
    method, recipe = load_with_recipe(model)
    method.check_trained()
    settings, recipe = _settings(recipe, overrides)
    device = resolve_device(settings.device)
    bank = open_bank(recipe.data.name, settings.split, recipe.data.min_images, **recipe.data.options).to(device)
    result = evaluate(
        method.to(device), bank, settings.way, settings.shot, settings.query, settings.episodes, settings.seed,
        settings.statistics, progress,
    )  # fmt: skip
    return result, settings


def _settings(recipe: Recipe, overrides: Sequence[str]) -> tuple[EvaluationSettings, Recipe]:
    """Words that are settings, and words for the data (data.size=…)."""
    pairs = [word.partition("=")[::2] for word in overrides]
    for word, (key, text) in zip(overrides, pairs, strict=True):
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
    return key.startswith("data.") or key == "min_images"
