"""The training loop."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from lightning_fabric import Fabric
from torch import Tensor

from sosn.checkpoint.storage import load_method
from sosn.data.bank import Bank
from sosn.errors import TrainingError, UsageError
from sosn.evaluation.protocol import Evaluation, evaluate
from sosn.kernel import engine
from sosn.method import Method
from sosn.recipe.library import as_recipe
from sosn.recipe.recipe import Recipe
from sosn.training.distributed import launched
from sosn.training.progress import Progress, Silent
from sosn.training.run import Run
from sosn.training.schedule import learning_rate
from sosn.training.setup import make_fabric
from sosn.training.trainer import Trainer
from sosn.util.files import read_json, write_atomically

SAVE_SECONDS = 60.0  # at most, between two checkpoints
LOG_STEPS = 20  # between two lines of metrics


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run: its folder, the best weights, and their accuracy on validation classes, if there are any."""

    folder: Path
    method: Method
    evaluation: Evaluation | None
    seconds: float
    rank: int = 0  # of this process in distributed training


def train(
    recipe: Recipe | str | os.PathLike[str],
    out: Path | str,
    resume: bool = False,
    progress: Progress | None = None,
    devices: int = 1,
    nodes: int = 1,
) -> TrainingResult:
    """Train a recipe, keep the weights with the best validation accuracy, and report that accuracy.

    recipe: a Recipe, or the name, file or run folder of one. out: the run folder. resume: continue from the checkpoint in the
    run folder; the final weights are the same as without the interruption. With several devices or nodes, one process runs on
    each device, and they share the episodes of each step; torchrun starts them, or train itself does on one node. Test classes
    are never opened.
    """
    recipe = as_recipe(recipe)
    fabric = make_fabric(recipe, devices, nodes)
    run = Run(Path(out))
    run.check_same(recipe) if resume else run.check_new()  # before other processes start and repeat the error
    with launched(fabric, (progress or Silent()).lost):
        try:
            return _train(recipe, Path(out), resume, progress or Silent(), fabric)
        except RuntimeError as error:
            if fabric.world_size > 1 and ("gloo" in str(error) or isinstance(error, torch.distributed.DistError)):
                saved = "resume it to continue from the last checkpoint" if run.checkpoint.exists() else "nothing was saved yet"
                raise TrainingError(f"another process of this run has ended: {saved}") from error
            raise


def _train(recipe: Recipe, out: Path, resume: bool, progress: Progress, fabric: Fabric) -> TrainingResult:
    progress = progress if fabric.is_global_zero else Silent()
    run = Run(out, writes=fabric.is_global_zero)
    trainer = Trainer(recipe, run, progress, fabric)  # checks the recipe and the data before anything is written
    start = {} if resume and run.checkpoint.exists() else trainer.begin()
    fabric.barrier()  # all processes have read the folder before one writes to it
    with run.alone():
        if resume:
            run.check_contents(trainer.contents)
            run.check_start(start)
        elif run.writes:
            run.check_new()  # again: another process may have created it meanwhile
            run.create(recipe, trainer.contents, start)
        _check_shared(run, fabric)
        if resume and run.checkpoint.exists():
            trainer.load()
        done = trainer.step == recipe.training.steps and run.result.exists()
        if done:
            progress.say("this run is finished; evaluating its weights again")
        else:
            _run(trainer)
        fabric.barrier()  # the first process has written the weights
        method, _ = load_method(run.weights)
        method.to(fabric.device)
        with engine(recipe.training.engine):
            result = None if trainer.val_bank is None else report(recipe, method, trainer.val_bank, progress.evaluating, fabric)
        if done or not fabric.is_global_zero:
            seconds = read_json(run.result)["seconds"] if done else trainer.seconds
            return TrainingResult(run.folder, method, result, seconds, fabric.global_rank)
        figures = result.to_json() if result else {}
        summary = {"split": "val" if result else None, "seconds": round(trainer.seconds, 1), "step": trainer.step} | figures
        write_atomically(run.result, (json.dumps(summary, indent=2) + "\n").encode())
        return TrainingResult(run.folder, method, result, trainer.seconds)


def _check_shared(run: Run, fabric: Fabric) -> None:
    """Refuse a run folder that some processes cannot see: the first process writes what all read."""
    if fabric.world_size == 1:
        return
    fabric.barrier()  # the first process has created the folder
    count = cast(Tensor, fabric.all_reduce(torch.tensor(float(run.exists), device=fabric.device), reduce_op="sum"))
    if int(count) < fabric.world_size:
        raise UsageError(
            f"{fabric.world_size - int(count)} of {fabric.world_size} processes do not see the run folder "
            f"{str(run.folder.absolute())!r} of the first: give --out on a file system that all machines share"
        )


def _run(trainer: Trainer) -> None:
    """Run the remaining steps and record their metrics."""
    recipe, run = trainer.recipe, trainer.run
    trainer.progress.start(trainer.step, recipe.training.steps, recipe.episodes.episodes_per_step)
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True  # shapes stay the same, so searching for the fastest convolution pays off
    try:
        with run.recording(trainer.step):
            _steps(trainer)
    finally:
        torch.backends.cudnn.benchmark = before
        trainer.source.close()


def _steps(trainer: Trainer) -> None:
    recipe, run, fabric = trainer.recipe, trainer.run, trainer.fabric
    every_loss = fabric.device.type == "cpu"  # on a GPU, reading it would stall the device
    saved = time.monotonic()
    while trainer.step < recipe.training.steps:
        loss = trainer.advance()
        step = trainer.step
        last = step == recipe.training.steps
        logged = step % LOG_STEPS == 0 or last
        due = step % recipe.validation.every == 0 or last
        value = cast(Tensor, fabric.all_reduce(loss)).item() if every_loss or logged or due else None
        trainer.progress.step(step, value)
        if value is not None:
            trainer.check(value)
        if value is not None and logged:
            run.record(step, loss=value, learning_rate=learning_rate(step - 1, recipe.training))
        if due and (result := trainer.validate()):
            run.record(step, val_accuracy=result.accuracy, val_ci95=result.ci95, best=trainer.best)
        if due or time.monotonic() - saved > SAVE_SECONDS:
            trainer.save()
            saved = time.monotonic()


def report(
    recipe: Recipe,
    method: Method,
    bank: Bank,
    progress: Callable[[int, int], None] | None = None,
    fabric: Fabric | None = None,
) -> Evaluation:
    """Evaluate the final weights of a run on the episodes of report_seed, with running statistics."""
    wanted = recipe.validation
    sizes = (recipe.val_way, recipe.val_shot, wanted.val_query, wanted.report_episodes, wanted.report_seed)
    return evaluate(method, bank, *sizes, progress=progress, fabric=fabric)
