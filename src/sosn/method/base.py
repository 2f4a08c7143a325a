"""What every few-shot method shares: episodes in, scores out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sosn.encoder.preprocessing import Preprocessing
from sosn.episode import Episode, check_episode
from sosn.errors import UntrainedError, UsageError
from sosn.util.precision import full

Statistics = Literal["running", "batch"]
LossName = Literal["mse", "cross_entropy", "binary_cross_entropy"]


class Method(nn.Module, ABC):
    """A few-shot learner: `method(episode)` gives scores E×Q×L, higher where query and class are more alike.

    Each says whether the answer to one query depends on the other queries (transductive), whether its weights change at
    test time (adapts), and which loss its paper trains it with (own_loss). trained becomes true when weights are kept by
    a training run or loaded; whoever trains one otherwise sets it.
    """

    name: ClassVar[str]
    transductive: ClassVar[bool] = False
    adapts: bool = False
    own_loss: ClassVar[LossName] = "mse"
    trained: bool = False
    classes_apart: ClassVar[bool] = False  # whether the score of a class depends on it and the query, not on other classes
    capturable: ClassVar[bool] = False  # whether a training step never waits for the GPU, so that it can be a CUDA graph

    preprocessing: Preprocessing
    config: dict[str, Any]  # the constructor's arguments, saved with the weights

    @abstractmethod
    def logits(self, episode: Episode, separately: bool = False) -> Tensor:
        """Similarities before squashing, E×Q×L. separately: encode support and query as two batches, not one."""

    def encode(self, images: Tensor) -> Tensor | None:
        """What compare needs to know of each image (B, …), or None where a method needs episodes as a whole."""
        return None

    def compare(self, support: Tensor, query: Tensor) -> Tensor:
        """Logits E×Q×L from what encode gave, (E, L, Z, …) and (E, Q, …)."""
        raise NotImplementedError(
            f"method {self.name!r} needs episodes as a whole, so it compares no encoded images: call it with an Episode"
        )

    def describe_images(self, images: Tensor) -> Tensor | None:
        """What compare_images needs to know of each image (B, …), often less than encode gives; None if none will do."""
        return None

    def compare_images(self, support: Tensor, query: Tensor) -> Tensor:
        """Logits E×Q×L from what describe_images gave, (E, L, 1, …) and (E, Q, …): classes have one shot."""
        raise NotImplementedError(f"method {self.name!r} describes no single images: use encode and compare")

    def score(self, logits: Tensor) -> Tensor:
        """Similarities between 0 and 1."""
        return torch.sigmoid(logits)

    def forward(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
        """Scores E×Q×L.

        statistics="running" leaves batch norm in the mode the module is in. "batch" is the authors' transductive way: each
        episode is normalised by its own support images, query images and pairs, one episode after the other; nothing is
        remembered of them.
        """
        return self.score(self.unsquashed(episode, statistics))

    def unsquashed(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
        """What forward squashes to scores, E×Q×L. Answers are the highest of it: scores near 1 are the same to the bit."""
        check_episode(episode, f"method {self.name!r}")
        if statistics == "running":
            return full(self.logits(episode))
        if statistics != "batch":
            raise UsageError(f"statistics is {statistics!r}; choose running or batch")
        with batch_statistics(self):
            parts = [self.logits(episode.one(index), separately=True) for index in range(len(episode))]
        return full(torch.cat(parts))

    def predict(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
        """The class of each query, E×Q numbers in 0…L−1, in evaluation mode. Refuses a learnt method without training."""
        self.check_trained()
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            with torch.no_grad():
                return self.unsquashed(episode, statistics).argmax(-1)
        finally:
            for module, training in modes.items():
                module.training = training

    def check_trained(self) -> None:
        """Refuse to answer with weights that nobody trained: the answers would be guesses that look like any other."""
        if not self.trained and self.parameter_count():
            raise UntrainedError(
                f"method {self.name!r} has not been trained and would answer at chance: train it with `sosn train`, load a "
                "trained one with sosn.load, or set trained=True on one that you trained yourself"
            )

    def loss(self, episode: Episode, name: LossName = "mse") -> Tensor:
        """Mean squared error to one-hot labels (Eq. 7, as a mean), or cross-entropy on the logits across classes.

        Or binary cross-entropy of each pair of a query and a class, same and different pairs weighing the same in all.
        """
        check_episode(episode, "a loss")
        return self.loss_of(self.logits(episode), episode.labels, name)

    def loss_of(self, logits: Tensor, labels: Tensor | None, name: LossName) -> Tensor:
        """The loss of logits (E, Q, L) whose queries have these labels (E, Q)."""
        if labels is None:
            raise UsageError("a loss needs an episode with labels")
        if name not in get_args(LossName):
            raise UsageError(f"loss is {name!r}; choose {', '.join(get_args(LossName)[:-1])} or {get_args(LossName)[-1]}")
        logits, labels, way = full(logits), labels.long(), logits.shape[-1]
        if name == "cross_entropy":
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        target = F.one_hot(labels, way).to(logits.dtype)
        if name == "binary_cross_entropy":
            weight = torch.where(target == 1, 0.5, 0.5 / max(way - 1, 1)).to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits, target, weight, reduction="sum") / labels.numel()
        return F.mse_loss(self.score(logits), target)

    def shed(self) -> None:
        """Let go of what only training needs."""
        return

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters; the preprocessing's buffers follow them."""
        return self.preprocessing.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.preprocessing.mean.device

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Let batch norm use the batch at hand, and leave its running statistics as they are."""
    layers = batch_norms(module)
    before = [(layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, (training, tracking) in zip(layers, before, strict=True):
            layer.training, layer.track_running_stats = training, tracking


def constructor_arguments(local_names: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an __init__, from its locals() before anything else is assigned."""
    return {key: value for key, value in local_names.items() if key not in ("self", "__class__")}


def at_least(least: int, **options: int) -> None:
    """Refuse constructor options below this, by name."""
    for name, value in options.items():
        if value < least:
            raise UsageError(f"{name} is {value}; it must be {least} or more")


def above_zero(**options: float) -> None:
    """Refuse constructor options that are not above 0, by name."""
    for name, value in options.items():
        if not value > 0:
            raise UsageError(f"{name} is {value}; it must be above 0")


def class_numbers(episode: Episode, classes: int, name: str) -> Tensor:
    """What every image of an episode is among the training classes, support images first: (E·L·Z + E·Q,)."""
    if episode.labels is None or episode.classes is None:
        raise UsageError(f"{name} trains on labels and class numbers, which EpisodeSampler gives: both are needed")
    truth = torch.cat(
        (
            episode.classes.unsqueeze(-1).expand(episode.support.shape[:3]).flatten(),
            episode.classes.gather(1, episode.labels.long()).flatten(),
        )
    )
    if truth.device.type == "cpu" and int(truth.max()) >= classes:  # elsewhere looking would stall
        raise UsageError(f"class number {int(truth.max())} among {classes} classes: leave classes to the data")
    return truth


def encode_together(
    encoder: Callable[[Tensor], Tensor], support: Tensor, query: Tensor, separately: bool
) -> tuple[Tensor, Tensor]:
    """Pass two flat batches through an encoder as one batch, so that batch norm sees one population, or as two."""
    if separately:
        return encoder(support), encoder(query)
    both = encoder(torch.cat((support, query)))
    return both[: len(support)], both[len(support) :]
