"""Training, in the order in which it happens."""

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor

from sosn.data import Bank, EpisodeSampler, leave_out_small, open_bank
from sosn.data.augmentation import augment
from sosn.device import check_bf16, resolve_device
from sosn.episode import Episode
from sosn.errors import DataError, MissingSplitError, TrainingError, UsageError
from sosn.evaluation import Evaluation, evaluate
from sosn.files import write_atomically
from sosn.kernel import engine
from sosn.memory import keep_freed_memory
from sosn.method import Method, method_class
from sosn.recipe import Recipe
from sosn.seeding import generator
from sosn.storage import load_method, load_tensors, restore, save_method, save_tensors
from sosn.training.calibration import recalibrate, update_average
from sosn.training.capture import CapturedStep
from sosn.training.run import Run, contents
from sosn.training.schedule import learning_rate
from sosn.training.source import EpisodeSource
from sosn.typed import annotations

SAVE_SECONDS = 60.0  # longest time between two checkpoints
LOG_STEPS = 20  # steps between two lines of metrics


class Progress(Protocol):
    """What a run tells while it goes on."""

    def say(self, sentence: str) -> None: ...
    def start(self, first_step: int, steps: int, episodes_per_step: int) -> None: ...
    def step(self, step: int, loss: float | None) -> None: ...
    def evaluating(self, done: int, total: int) -> None: ...
    def validation(self, step: int, result: Evaluation, best: bool) -> None: ...


class Silent:
    """Progress that nobody sees."""

    def say(self, sentence: str) -> None: ...
    def start(self, first_step: int, steps: int, episodes_per_step: int) -> None: ...
    def step(self, step: int, loss: float | None) -> None: ...
    def evaluating(self, done: int, total: int) -> None: ...
    def validation(self, step: int, result: Evaluation, best: bool) -> None: ...


@dataclass(frozen=True)
class TrainingResult:
    """What came of a run: its folder, the weights that were kept, and their figure on validation classes, if there are any."""

    folder: Path
    method: Method
    evaluation: Evaluation | None
    seconds: float
    rank: int = 0  # of this process among those that trained together


def build(recipe: Recipe, bank: Bank) -> Method:
    """The method of a recipe, fitted to the images of a bank, with weights from the recipe's seed."""
    wanted, kind = recipe.model.options, method_class(recipe.model.method)
    options: dict[str, Any] = {"channels": bank.channels, "input_size": bank.size}
    if "classes" in annotations(kind):  # of those methods that learn to tell the training classes apart
        options["classes"] = len(bank.names)
    by_pixel = bool(wanted.get("mean_image"))
    if recipe.data.standardise and "mean" in annotations(kind) and not {"mean", "std"} & wanted.keys():
        mean, std = bank.mean_std()
        mean = [1 - value for value in mean] if wanted.get("polarity") == "inverted" else mean  # it is applied after that
        channels = wanted.get("channels", bank.channels)
        if channels != len(mean):  # grey images for a model of colour, or the other way
            mean, std = ([sum(values) / len(values)] * channels for values in (mean, std))
        options |= {"std": std} if by_pixel else {"mean": mean, "std": std}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator("weights", recipe.seed).initial_seed())
        method = kind(**options | wanted)
    if by_pixel:
        method.preprocessing.take_mean(bank.mean_image().cpu())
    return method


def open_split(recipe: Recipe, split: str, say: Callable[[str], None] | None = None) -> Bank:
    """A split of a recipe's data, without the classes that it leaves out; how many those are is said."""
    bank = open_bank(recipe.data.name, split, recipe.data.min_images, **recipe.data.options)
    if not recipe.data.leave_out_small:
        return bank
    episodes, wanted = recipe.episodes, recipe.validation
    shot, query = (episodes.shot, episodes.query) if split == "train" else (recipe.val_shot, wanted.val_query)
    return leave_out_small(bank, split, shot, query, say)


def report(
    recipe: Recipe,
    method: Method,
    bank: Bank,
    progress: Callable[[int, int], None] | None = None,
    fabric: Fabric | None = None,
) -> Evaluation:
    """The figure that stands for a run: report_seed's episodes, running statistics."""
    wanted = recipe.validation
    sizes = (recipe.val_way, recipe.val_shot, wanted.val_query, wanted.report_episodes, wanted.report_seed)
    return evaluate(method, bank, *sizes, progress=progress, fabric=fabric)


class Trainer:
    """The state of a run and what is done to it, step by step."""

    def __init__(self, recipe: Recipe, run: Run, progress: Progress, fabric: Fabric | None = None) -> None:
        self.recipe, self.run, self.progress = recipe, run, progress
        self.fabric = fabric or make_fabric(recipe)
        device = self.fabric.device
        train_bank = open_split(recipe, "train", progress.say)
        self.contents = {"train": contents(train_bank)}
        episodes = recipe.episodes
        home = "cpu" if recipe.data.workers else device  # with workers, images stay on disk
        self.sampler = EpisodeSampler(train_bank.to(home), episodes.way, episodes.shot, episodes.query)
        self.source = EpisodeSource(self.sampler, recipe, device, self.fabric.global_rank, self.fabric.world_size)
        try:
            val_bank = open_split(recipe, "val", progress.say)
            self.contents["val"] = contents(val_bank)
            self.val_bank: Bank | None = val_bank.to(home)
        except MissingSplitError as error:
            self.val_bank = None
            progress.say(f"{error}: the weights of the last step will be kept")
        if self.val_bank is not None:  # refuse sizes that validation cannot use before anything is trained
            try:
                EpisodeSampler(self.val_bank, recipe.val_way, recipe.val_shot, recipe.validation.val_query)
            except DataError as error:
                raise DataError(f"for validation (val_way, val_shot, val_query): {error}") from error
        self.method = build(recipe, train_bank).to(device)
        if not self.method.parameter_count():
            raise UsageError(f"method {recipe.model.method!r} has nothing to train")
        self.judged = copy.deepcopy(self.method)  # takes the weights that are validated and kept
        self.average = {name: weight.detach().clone() for name, weight in self.method.named_parameters()}
        training = recipe.training
        self.optimiser = _optimiser(self.method, recipe, device)
        self.module, self.optimizer = self.fabric.setup(self.method, self.optimiser)
        self.module.mark_forward_method("loss")
        alone = self.fabric.world_size == 1
        captured = alone and device.type == "cuda" and self.method.capturable and training.engine == "auto"
        self.learn: Callable[[Episode], Tensor] = CapturedStep(self.take) if captured else self.take
        self.step = 0  # steps taken
        self.began, self.earlier = time.monotonic(), 0.0  # this process's start, and seconds that others spent on the run
        self.best = -1.0

    def episode(self, purpose: str, number: int) -> Episode:
        """Training episodes of one step, augmented as the recipe says; they depend on the seed, purpose and number alone."""
        recipe, device = self.recipe, self.fabric.device
        drawn = self.source.draw(purpose, number)
        share = (self.fabric.global_rank,) if purpose == "train" and self.fabric.global_rank else ()
        return augment(drawn, recipe.augmentation, generator("augment", purpose, recipe.seed, number, *share, device=device))

    def advance(self) -> Tensor:
        """Take one step and return its loss."""
        training = self.recipe.training
        for group in self.optimiser.param_groups:
            rate = learning_rate(self.step, training)
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        episode = self.episode("train", self.step)
        self.method.train()
        with engine(training.engine):
            loss = self.learn(episode)
        if training.average:
            update_average(self.average, self.method, training.average, self.step)
        self.step += 1
        return loss

    def take(self, episode: Episode) -> Tensor:
        """Improve the weights on these episodes and return the loss before."""
        training = self.recipe.training
        self.optimizer.zero_grad()
        with self.fabric.autocast():  # Fabric applies it by itself to forward alone
            loss: Tensor = self.module.loss(episode, training.loss)
        self.fabric.backward(loss)
        if training.clip:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=training.clip, error_if_nonfinite=False)
        self.optimizer.step()
        return loss.detach()

    def judge(self) -> Evaluation | None:
        """Validate the current weights, and keep them if they are the best so far or there is nothing to judge them by."""
        with engine(self.recipe.training.engine):
            return self._judge()

    def _judge(self) -> Evaluation | None:
        recipe = self.recipe
        self.check_weights()
        with torch.no_grad():
            self.judged.load_state_dict(self.method.state_dict())
            if recipe.training.average:
                for name, weight in self.judged.named_parameters():
                    weight.copy_(self.average[name])
        if recipe.training.recalibrate:
            with self.fabric.autocast():
                recalibrate(self.judged, (self.episode("recalibrate", n) for n in range(recipe.training.recalibrate)))
        else:  # each process has statistics of its own: all take the first one's
            for buffer in self.judged.buffers():
                buffer.copy_(self.fabric.broadcast(buffer))
        if self.val_bank is None:
            self.keep({})
            return None
        wanted = recipe.validation
        result = evaluate(
            self.judged,
            self.val_bank,
            recipe.val_way,
            recipe.val_shot,
            wanted.val_query,
            wanted.val_episodes,
            wanted.val_seed,
            progress=self.progress.evaluating,
            fabric=self.fabric,
        )
        best = result.accuracy > self.best
        if best:
            self.keep(result.to_json())
            self.best = result.accuracy
        self.progress.validation(self.step, result, best)
        return result

    def keep(self, selection: dict[str, Any]) -> None:
        """Write the judged weights as the run's model."""
        if not self.fabric.is_global_zero:
            return
        about = {"recipe": self.recipe.to_table(), "step": self.step, "selection": selection}
        self.judged.trained = True
        save_method(self.run.weights, self.judged, about)

    def save(self) -> None:
        """Write all that is needed to go on from here. Refuses weights that are not finite, so the last good ones stay."""
        self.check_weights()
        if not self.fabric.is_global_zero:
            return
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": value for name, value in state.items()}
        save_tensors(self.run.checkpoint, tensors, {"step": self.step, "best": self.best, "seconds": self.seconds})

    def load(self) -> None:
        """Take up the state that was saved."""
        tensors, about = load_tensors(self.run.checkpoint)
        parts: dict[str, dict[str, Tensor]] = {"method": {}, "average": {}, "optimiser": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = value
        restore(self.method, parts["method"], self.run.checkpoint)
        for name, value in parts["average"].items():
            self.average[name].copy_(value)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["optimiser"].items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = value
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})
        self.step, self.best, self.earlier = int(about["step"]), float(about["best"]), float(about.get("seconds", 0))

    @property
    def seconds(self) -> float:
        """Time spent on the run, before and after any break."""
        return self.earlier + time.monotonic() - self.began

    def check_weights(self) -> None:
        for name, value in self.method.state_dict().items():
            if not torch.isfinite(value).all():
                raise TrainingError(self._not_finite(f"{name!r}"))

    def check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise TrainingError(self._not_finite("loss"))

    def _not_finite(self, what: str) -> str:
        kept = self.run.checkpoint if self.run.checkpoint.exists() else None
        saved = f"; the last good checkpoint is {str(kept)!r}" if kept else ""
        return f"{what} is not finite at step {self.step}{saved}: lower learning_rate, or set clip=0.5"


def _optimiser(method: Method, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    wanted = recipe.training
    kind = torch.optim.AdamW if wanted.optimiser == "adamw" else torch.optim.Adam
    if device.type != "cuda":
        return kind(method.parameters(), wanted.learning_rate, weight_decay=wanted.weight_decay)
    rate = torch.tensor(wanted.learning_rate, device=device)  # a tensor, so that a captured step reads the current one
    return kind(method.parameters(), rate, weight_decay=wanted.weight_decay, fused=True, capturable=True)


def make_fabric(recipe: Recipe, devices: int = 1, nodes: int = 1) -> Fabric:
    """The recipe's device and precision, as one process or as several that share each step's episodes."""
    wanted = recipe.training
    device = resolve_device(wanted.device)
    if devices < 1 or nodes < 1:
        raise UsageError(f"devices is {devices} and nodes {nodes}; both are 1 or more")
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise UsageError(f"devices is {devices} and there are {torch.cuda.device_count()} GPUs here")
    if wanted.precision == "bf16" and device.type == "cpu":
        check_bf16()
    return Fabric(
        accelerator=device.type,
        devices=[device.index] if devices == 1 and device.index is not None else devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        precision="bf16-mixed" if wanted.precision == "bf16" else "32-true",
    )


def train(
    recipe: Recipe,
    out: Path | str,
    resume: bool = False,
    progress: Progress | None = None,
    devices: int = 1,
    nodes: int = 1,
) -> TrainingResult:
    """Train a recipe in a run folder, keep the weights that validate best, and report their figure on validation classes.

    Test classes are never opened. resume goes on from the folder's checkpoint, to the same weights as without the break.
    With several devices or nodes the program is started once for each of them (by torchrun, or by itself on one node); they
    share the episodes of each step.
    """
    keep_freed_memory()
    fabric = make_fabric(recipe, devices, nodes)
    fabric.launch()
    progress = progress if progress and fabric.is_global_zero else Silent()
    run = Run(Path(out), writes=fabric.is_global_zero)
    run.check_same(recipe) if resume else run.check_new()
    trainer = Trainer(recipe, run, progress, fabric)  # refuses what cannot be trained before anything is written
    fabric.barrier()  # all have looked at the folder before it is written to
    if resume:
        run.check_contents(trainer.contents)
    else:
        run.create(recipe, trainer.contents)
    with run.alone():
        if resume and run.checkpoint.exists():
            trainer.load()
        done = trainer.step == recipe.training.steps and run.result.exists()
        if not done:
            _run(trainer)
        fabric.barrier()  # the first process has written the weights
        method, _ = load_method(run.weights)
        method.to(fabric.device)
        result = None if trainer.val_bank is None else report(recipe, method, trainer.val_bank, progress.evaluating, fabric)
        if done or not fabric.is_global_zero:
            seconds = json.loads(run.result.read_text())["seconds"] if done else trainer.seconds
            return TrainingResult(run.folder, method, result, seconds, fabric.global_rank)
        figures = result.to_json() if result else {}
        summary = {"split": "val" if result else None, "seconds": round(trainer.seconds, 1), "step": trainer.step} | figures
        write_atomically(run.result, (json.dumps(summary, indent=2) + "\n").encode())
        return TrainingResult(run.folder, method, result, trainer.seconds)


def _run(trainer: Trainer) -> None:
    """All steps that are left, with their metrics."""
    recipe, run = trainer.recipe, trainer.run
    trainer.progress.start(trainer.step, recipe.training.steps, recipe.episodes.episodes_per_step)
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True  # shapes stay the same, so the fastest convolution is worth looking for
    try:
        with run.recording(trainer.step):
            _steps(trainer)
    finally:
        torch.backends.cudnn.benchmark = before
        trainer.source.close()


def _steps(trainer: Trainer) -> None:
    recipe, run, fabric = trainer.recipe, trainer.run, trainer.fabric
    every_loss = fabric.device.type == "cpu"  # elsewhere reading it would stall the device
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
        if due and (result := trainer.judge()):
            run.record(step, val_accuracy=result.accuracy, val_ci95=result.ci95, best=trainer.best)
        if due or time.monotonic() - saved > SAVE_SECONDS:
            trainer.save()
            saved = time.monotonic()
