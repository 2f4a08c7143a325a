"""Run trainings that are not finished, and estimate how long they will take."""

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sosn.data.prepare.catalog import prepare_dataset
from sosn.data.prepare.store import prepared_sizes
from sosn.data.sampler import EpisodeSampler
from sosn.errors import DataError
from sosn.recipe.library import RECIPE_FILE
from sosn.recipe.recipe import Recipe
from sosn.training import Progress, Silent, train
from sosn.training.cuda_graph import FREE_STEPS
from sosn.training.run import Run
from sosn.training.setup import open_split
from sosn.training.trainer import Trainer

PROBED = 2  # steps that are timed for the estimate
# Options of models that do not change the time of a step
FREE_OPTIONS = frozenset("eta gamma rho softness shift alpha scale polarity permutation_seed".split())


def prepare_missing(name: str, size: int, source: Path | None, progress: Progress) -> bool:
    """Prepare a dataset at a size from the source, if needed. Returns False if it is not prepared and there is no source."""
    if size in prepared_sizes(name):
        return True
    if source is None:
        return False
    progress.say(f"preparing {name} at {size}×{size} from {str(source)!r}")
    prepare_dataset(name, source, size, progress.evaluating)
    return True


def train_or_resume(recipe: Recipe, folder: Path, progress: Progress) -> Run:
    """Train a recipe in a folder, or resume its run, unless it is finished. Refuses a folder with a run of another recipe."""
    run = Run(folder)
    begun = (folder / RECIPE_FILE).exists()
    if begun:
        run.check_same(recipe)
    if not run.result.exists():
        progress.say(f"{recipe.title}: training in {str(folder)!r}")
        train(recipe, folder, resume=begun, progress=progress)
        _free()
    return run


def estimate(jobs: Sequence[tuple[Recipe, float]]) -> str:
    """Estimate how long trainings will take, from a few timed steps of each configuration.

    A job is a recipe and the number of query–class pairs that are scored after its training. Jobs whose data cannot fill an
    episode are ignored.
    """
    total = 0.0
    timed: dict[tuple[object, ...], float] = {}  # seconds per step
    for recipe, pairs in jobs:
        episodes, wanted = recipe.episodes, recipe.validation
        try:
            EpisodeSampler(open_split(recipe, "train"), episodes.way, episodes.shot, episodes.query)
            if (configuration := _configuration(recipe)) not in timed:
                timed[configuration] = _step_seconds(recipe)
        except DataError:
            continue
        rounds = -(-recipe.training.steps // wanted.every)
        pairs += (rounds * wanted.val_episodes + wanted.report_episodes) * recipe.val_way**2 * wanted.val_query
        share = pairs / (episodes.episodes_per_step * episodes.way**2 * episodes.query)  # in units of the pairs of a step
        total += timed[configuration] * (recipe.training.steps + share / 3)  # without gradients: a third
    return f"about {duration(total)} on this machine" if timed else "none has enough images"


def _configuration(recipe: Recipe) -> tuple[object, ...]:
    """Return the settings that determine the time of a step."""
    training, options = recipe.training, recipe.model.options
    costly = tuple(sorted((name, str(value)) for name, value in options.items() if name not in FREE_OPTIONS))
    ways = (training.precision, training.engine, recipe.augmentation, str(recipe.encoder), str(recipe.preprocessing))
    return (recipe.data.name, recipe.data.options.get("size"), recipe.model.method, recipe.episodes, *ways, costly)


def _step_seconds(recipe: Recipe) -> float:
    recipe = replace(recipe, training=replace(recipe.training, start=""))  # the start may not be trained yet
    trainer = Trainer(recipe, Run(Path()), Silent())
    for _ in range(FREE_STEPS + 2 if trainer.fabric.device.type == "cuda" else 1):  # until the CUDA graph is captured
        trainer.advance().item()
    began = time.monotonic()
    for _ in range(PROBED):
        trainer.advance().item()
    seconds = (time.monotonic() - began) / PROBED
    trainer.source.close()
    del trainer
    _free()
    return seconds


def _free() -> None:
    """Free the device memory of a finished training, including its CUDA graph."""
    gc.collect()
    torch.cuda.empty_cache()


def duration(seconds: float) -> str:
    """Format a number of seconds."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
