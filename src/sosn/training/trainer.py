"""The state of a run: training steps, validation, checkpoints."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from sosn.checkpoint.storage import load_tensors, restore, save_method, save_tensors
from sosn.checkpoint.training_classes import overlap
from sosn.data.augmentation import augment
from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler
from sosn.encoder.drop_block import DropBlock
from sosn.episode import Episode
from sosn.errors import DataError, MissingSplitError, TrainingError, UsageError
from sosn.evaluation.protocol import Evaluation, evaluate
from sosn.kernel import engine
from sosn.recipe.recipe import Recipe
from sosn.training.cuda_graph import CapturedStep
from sosn.training.progress import Progress
from sosn.training.recalibration import recalibrate, update_average
from sosn.training.run import Run, contents
from sosn.training.schedule import learning_rate
from sosn.training.setup import build, make_fabric, make_optimiser, open_split
from sosn.training.source import EpisodeSource
from sosn.training.warm_start import take_weights
from sosn.util.seeding import generator

Opener = Callable[[Recipe, str, Callable[[str], None]], Bank]  # opens a split of a recipe's data, or raises MissingSplitError


class Trainer:
    """Holds the state of a run: takes steps, validates, saves and loads checkpoints."""

    def __init__(
        self, recipe: Recipe, run: Run, progress: Progress, fabric: Fabric | None = None, opened: Opener = open_split
    ) -> None:
        self.recipe, self.run, self.progress = recipe, run, progress
        self.fabric = fabric or make_fabric(recipe)
        device = self.fabric.device
        train_bank = opened(recipe, "train", progress.say)
        self.contents = {"train": contents(train_bank)}
        episodes = recipe.episodes
        home = "cpu" if recipe.data.workers else device  # with workers, images stay on disk
        try:
            self.sampler = EpisodeSampler(train_bank.to(home), episodes.way, episodes.shot, episodes.query)
        except DataError as error:
            raise type(error)(f"for training: {error}{_split_hint(recipe)}") from error
        self.source = EpisodeSource(self.sampler, recipe, device, self.fabric.global_rank, self.fabric.world_size)
        try:
            val_bank = opened(recipe, "val", progress.say)
            self.contents["val"] = contents(val_bank)
            self.val_bank: Bank | None = val_bank.to(home)
        except MissingSplitError as error:
            self.val_bank = None
            progress.say(f"{error}: the weights of the last step will be saved")
        if self.val_bank is not None:  # refuse impossible validation episodes before training starts
            wanted = recipe.validation
            way = "val_way" if wanted.val_way else "way or val_way"
            shot = "val_shot" if wanted.val_shot else "shot or val_shot"
            sizes = (recipe.val_way, recipe.val_shot, wanted.val_query)
            try:
                EpisodeSampler(self.val_bank, *sizes, called=(way, shot, "val_query"))
            except DataError as error:
                raise type(error)(f"for validation: {error}{_split_hint(recipe)}") from error
        self.method = build(recipe, train_bank).to(device)
        if not self.method.parameter_count():
            raise UsageError(f"method {recipe.model.method!r} has nothing to train")
        self.validated = copy.deepcopy(self.method)  # holds the weights that are validated and saved
        self.average = {name: weight.detach().clone() for name, weight in self.method.named_parameters()}
        training = recipe.training
        self.optimiser = make_optimiser(self.method, recipe, device)
        self.module, self.optimizer = self.fabric.setup(self.method, self.optimiser)
        self.module.mark_forward_method("loss")
        alone = self.fabric.world_size == 1
        captured = alone and device.type == "cuda" and self.method.capturable and training.engine == "auto"
        self.learn: Callable[[Episode], Tensor] = CapturedStep(self.take) if captured else self.take
        self.step = 0  # steps taken
        self.began, self.earlier = time.monotonic(), 0.0  # start of this process, and seconds that earlier processes spent
        self.best = -1.0

    def begin(self) -> dict[str, Any]:
        """Load the weights that the recipe starts from, if it names any, and return what run.json records of them.

        Refuses weights that were trained on validation classes.
        """
        if not self.recipe.training.start:
            return {}
        start = take_weights(self.method, self.recipe.training.start)
        known = overlap(start.training_classes, self.recipe.data, self.val_bank.names) if self.val_bank else set()
        if known:
            raise DataError(
                f"{len(known)} validation classes, such as {min(known)!r}, are training classes of start {start.model!r}: "
                "use the same split as that model, or start from another model"
            )
        for name, weight in self.method.named_parameters():
            self.average[name].copy_(weight.detach())
        self.progress.say(str(start))
        return start.to_json()

    def episode(self, purpose: str, number: int) -> Episode:
        """Return the augmented episodes of one step. They depend only on the seed, the purpose and the number."""
        recipe, device = self.recipe, self.fabric.device
        drawn = self.source.draw(purpose, number)
        rank = (self.fabric.global_rank,) if purpose == "train" and self.fabric.global_rank else ()
        return augment(drawn, recipe.augmentation, generator("augment", purpose, recipe.seed, number, *rank, device=device))

    def advance(self) -> Tensor:
        """Take one step and return its loss."""
        training = self.recipe.training
        for group in self.optimiser.param_groups:
            rate = learning_rate(self.step, training)
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        episode = self.episode("train", self.step)
        self.method.train()
        with engine(training.engine), self.noise():
            loss = self.learn(episode)
        if training.average:
            update_average(self.average, self.method, training.average, self.step)
        self.step += 1
        return loss

    @contextmanager
    def noise(self) -> Iterator[None]:
        """Seed DropBlock's random numbers, so that they depend only on the seed, the step and the rank."""
        if not any(isinstance(layer, DropBlock) for layer in self.method.modules()):
            yield
            return
        device = self.fabric.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(generator("noise", self.recipe.seed, self.step, self.fabric.global_rank).initial_seed())
            yield

    def take(self, episode: Episode) -> Tensor:
        """Update the weights on these episodes and return the loss before the update."""
        training = self.recipe.training
        self.optimizer.zero_grad()
        with self.fabric.autocast():  # Fabric itself applies it only to forward
            loss: Tensor = self.module.loss(episode, training.loss)
        self.fabric.backward(loss)
        if training.clip:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=training.clip, error_if_nonfinite=False)
        self.optimizer.step()
        return loss.detach()

    def validate(self) -> Evaluation | None:
        """Validate the current weights, and save them if they are the best so far or there are no validation classes."""
        with engine(self.recipe.training.engine):
            return self._validate()

    def _validate(self) -> Evaluation | None:
        recipe = self.recipe
        self.check_weights()
        with torch.no_grad():
            self.validated.load_state_dict(self.method.state_dict())
            if recipe.training.average:
                for name, weight in self.validated.named_parameters():
                    weight.copy_(self.average[name])
        if recipe.training.recalibrate:
            with self.fabric.autocast():
                recalibrate(self.validated, (self.episode("recalibrate", n) for n in range(recipe.training.recalibrate)))
        else:  # statistics differ between processes: all take those of the first
            for buffer in self.validated.buffers():
                buffer.copy_(self.fabric.broadcast(buffer))
        if self.val_bank is None:
            self.keep({})
            return None
        wanted = recipe.validation
        result = evaluate(
            self.validated,
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
        """Save the validated weights as the run's model."""
        if not self.fabric.is_global_zero:
            return
        about = {"recipe": self.recipe.to_table(), "step": self.step, "selection": selection}
        if recorded := self.run.about().get("start"):
            about["seen"] = recorded["seen"]  # recorded in every file of these weights
        self.validated.trained = True
        save_method(self.run.weights, self.validated, about)

    def save(self) -> None:
        """Save a checkpoint. Refuses weights that are not finite, so that the last good checkpoint is kept."""
        self.check_weights()
        if not self.fabric.is_global_zero:
            return
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": value for name, value in state.items()}
        save_tensors(self.run.checkpoint, tensors, {"step": self.step, "best": self.best, "seconds": self.seconds})

    def load(self) -> None:
        """Load the checkpoint."""
        tensors, about = load_tensors(self.run.checkpoint)
        parts: dict[str, dict[str, Tensor]] = {"method": {}, "average": {}, "optimiser": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = value
        restore(self.method, parts["method"], self.run.checkpoint)
        for name, value in parts["average"].items():
            self.average[name].copy_(value)
        state: dict[int, dict[str, Tensor]] = {}
        weights = list(self.method.parameters())
        for name, value in parts["optimiser"].items():
            number, _, key = name.partition(".")
            weight = weights[int(number)]
            if value.shape == weight.shape:  # a fused optimiser needs the memory format of the weight: channels last
                value = torch.empty_like(weight, dtype=value.dtype).copy_(value)
            state.setdefault(int(number), {})[key] = value
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})
        self.step, self.best, self.earlier = int(about["step"]), float(about["best"]), float(about.get("seconds", 0))

    @property
    def seconds(self) -> float:
        """Seconds spent on the run, including those before it was resumed."""
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


def _split_hint(recipe: Recipe) -> str:
    """Return how a folder of images was split, for messages about a split that is too small."""
    if not recipe.data.name.startswith("folder:"):
        return ""
    return " (without train/, val/ and test/ folders, val_share and test_share of the classes are set aside for those)"
