"""The base class of few-shot methods, which encode images, describe classes and queries, and compare descriptors."""

from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypedDict, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sosn.encoder import EncoderSpec
from sosn.encoder.preprocessing import Preprocessing
from sosn.episode import Episode, check_episode
from sosn.errors import UntrainedError, UsageError
from sosn.method.test_time import TestTimeAugmentation
from sosn.relation import Relation
from sosn.util.checks import one_of
from sosn.util.precision import full
from sosn.util.recorded import Recorded

Statistics = Literal["running", "batch"]
LossName = Literal["mse", "cross_entropy", "binary_cross_entropy"]
PreprocessingSpec = Preprocessing | Mapping[str, Any] | None
TestTimeSpec = TestTimeAugmentation | Mapping[str, Any] | None


class Shared(TypedDict, total=False):
    """Arguments that the constructors of all methods share."""

    channels: int
    input_size: int
    encoder: EncoderSpec
    preprocessing: PreprocessingSpec
    test_time: TestTimeSpec


SHARED = tuple(Shared.__annotations__)


class Method(Recorded, nn.Module, ABC):
    """A few-shot learner: `method(episode)` returns scores E×Q×L, higher for more similar queries and classes.

    A method that works image by image implements three functions, each on batches:

        encode    images (B, C, H, W) → features (B, …)
        describe  features of the shots of a class (…, Z, …) → its descriptor; a query is described as a class of one shot
        compare   descriptors of classes (E, L, …) and of queries (E, Q, …) → logits (E, Q, L)

    A method that needs the whole episode (MAML) implements `_logits` instead. The attributes below declare what else a method
    can do. trained becomes true when a training run saves weights or when weights are loaded; set it after training otherwise.
    """

    name: ClassVar[str]
    own_loss: ClassVar[LossName] = "mse"  # the loss of its paper
    usual_encoder: ClassVar[Mapping[str, Any] | None] = None  # a table for `encoder=`; None: no encoder
    usual_preprocessing: ClassVar[Mapping[str, Any]] = {}
    transductive: ClassVar[bool] = False  # whether the prediction for a query depends on other queries
    adapts: bool = False  # whether its weights change at test time
    capturable: ClassVar[bool] = False  # whether a training step can be a CUDA graph: it never waits for the GPU
    classes_apart: ClassVar[bool] = False  # whether the score of a class does not depend on the other classes
    linear: ClassVar[bool] = False  # whether features are vectors that a linear classifier can separate
    second_order: Relation | None = None  # how it turns features (B, K, N) into matrices, if it does

    trained: bool = False
    preprocessing: Preprocessing
    test_time: TestTimeAugmentation

    def __init__(
        self,
        channels: int = 3,
        input_size: int = 84,
        preprocessing: PreprocessingSpec = None,
        test_time: TestTimeSpec = None,
    ) -> None:
        super().__init__()
        if not isinstance(preprocessing, Preprocessing):
            sizes = {"channels": channels, "input_size": input_size}
            preprocessing = Preprocessing(**sizes | dict(self.usual_preprocessing) | dict(preprocessing or {}))
        self.preprocessing = preprocessing
        self.use_test_time(test_time)

    @property
    def describes_images(self) -> bool:
        """Whether it encodes and describes images one by one, so that features can be cached."""
        return True

    @property
    def fixed_size(self) -> bool:
        """Whether the size of a class descriptor does not depend on the number of shots."""
        return False

    @property
    def exportable(self) -> bool:
        """Whether it can be exported to ONNX."""
        return False

    @property
    def config(self) -> dict[str, Any]:
        """Plain values that rebuild this method; saved with its weights."""
        options = {name: value for name, value in self.arguments.items() if name not in SHARED}
        return options | {"preprocessing": self.preprocessing.table(), "test_time": vars(self.test_time)}

    def encode(self, images: Tensor) -> Tensor:
        """Encode images to features: (B, C, H, W) → (B, …)."""
        raise NotImplementedError(f"method {self.name!r} needs episodes as a whole: call it with an Episode")

    def describe(self, shots: Tensor) -> Tensor:
        """Describe classes by the features of their shots (…, Z, …); by default return the features unchanged."""
        return shots

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        """Compare descriptors of classes (E, L, …) and of queries (E, Q, …): logits (E, Q, L)."""
        raise NotImplementedError(f"method {self.name!r} needs episodes as a whole: call it with an Episode")

    def compare_features(self, support: Tensor, query: Tensor) -> Tensor:
        """Describe and compare features of support (E, L, Z, …) and query images (E, Q, …): logits (E, Q, L)."""
        return self.compare(self.describe(support), self.describe(query.unsqueeze(2)))

    def join(self, copies: Sequence[Tensor]) -> Tensor:
        """Join the features of several copies of the same images, each (B, …); by default return their mean."""
        return torch.stack(list(copies)).mean(0)

    def score(self, logits: Tensor) -> Tensor:
        """Turn logits into similarities between 0 and 1."""
        return torch.sigmoid(logits)

    def forward(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
        """Scores E×Q×L. In evaluation, they have the order of the logits, also near 1 where they would round to equal values.

        statistics="running" leaves batch norm in the mode of the module. "batch" is the authors' transductive way: each
        episode is normalised by the statistics of its support images, query images and pairs, one episode after the other.
        Running statistics do not change.
        """
        logits = self.logits(episode, statistics)
        return self.score(logits) if self.training else in_order(self.score(logits), logits)

    def logits(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
        """Logits E×Q×L, the scores before the sigmoid or softmax."""
        check_episode(episode, f"method {self.name!r}")
        one_of(get_args(Statistics), statistics=statistics)
        if self.test_time and not self.training and not self.describes_images:
            parts = [self._with_statistics(copy, statistics) for copy in self.test_time.episodes(episode)]
            return torch.stack(parts).mean(0)
        return self._with_statistics(episode, statistics)

    def _with_statistics(self, episode: Episode, statistics: Statistics) -> Tensor:
        if statistics == "running":
            return full(self._logits(episode, separately=False))
        with batch_statistics(self):
            parts = [self._logits(episode.one(index), separately=True) for index in range(len(episode))]
        return full(torch.cat(parts))

    def _logits(self, episode: Episode, separately: bool) -> Tensor:
        """Logits E×Q×L. separately: encode support and query images as two batches, not one."""
        support = self.encode(episode.support.flatten(0, 2)).unflatten(0, episode.support.shape[:3])
        return self.compare_features(
            support, self.encode(episode.query.flatten(0, 1)).unflatten(0, episode.query.shape[:2])
        )  # fmt: skip

    def predict(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
        """Predict the class of each query, E×Q numbers in 0…L−1, in evaluation mode. Raises UntrainedError without training."""
        self.check_trained()
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            with torch.no_grad():
                return self.logits(episode, statistics).argmax(-1)
        finally:
            for module, training in modes.items():
                module.training = training

    def check_trained(self) -> None:
        """Raise UntrainedError if the method has weights that were not trained, since it would predict at chance."""
        if not self.trained and self.parameter_count():
            raise UntrainedError(
                f"method {self.name!r} has not been trained and would predict at chance: train it with `sosn train`, load a "
                "trained model with sosn.load, or set trained=True if you trained it yourself"
            )

    def loss(self, episode: Episode, name: LossName = "mse") -> Tensor:
        """Compute a loss, a scalar. Refuses an episode without labels.

        "mse": mean squared error to one-hot labels (Eq. 7, as a mean). "cross_entropy": of the logits across classes.
        "binary_cross_entropy": of each query–class pair; same and different pairs have equal total weight.
        """
        check_episode(episode, "a loss")
        labels = episode.labels
        if labels is None:
            raise UsageError("a loss needs an episode with labels")
        one_of(get_args(LossName), loss=name)
        logits, labels = self.logits(episode), labels.long()
        if name == "cross_entropy":
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        target = F.one_hot(labels, episode.way).to(logits.dtype)
        if name == "binary_cross_entropy":
            weight = torch.where(target == 1, 0.5, 0.5 / max(episode.way - 1, 1)).to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits, target, weight, reduction="sum") / labels.numel()
        return F.mse_loss(self.score(logits), target)

    def use_test_time(self, wanted: TestTimeSpec) -> None:
        """Set the test-time augmentation for evaluation; None turns it off."""
        wanted = wanted if isinstance(wanted, TestTimeAugmentation) else TestTimeAugmentation(**dict(wanted or {}))
        if wanted and self.preprocessing.by_pixel:
            raise UsageError(
                "test-time augmentation does not work with mean_image, which is subtracted first: leave mean_image out"
            )
        self.test_time = wanted

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters, which the buffers of the preprocessing share."""
        return self.preprocessing.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.preprocessing.mean.device

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


@torch.no_grad()
def _in_order(scores: Tensor, logits: Tensor) -> Tensor:
    """Lower scores (…, L) by as little as their type can, so that they have the order of the logits.

    The bits of floats that are not negative, read as integers, have the order of the floats.
    """
    order = logits.argsort(-1, descending=True)
    falling = logits.gather(-1, order)
    whole = torch.int32 if scores.dtype == torch.float32 else torch.int64
    rank = F.pad((falling.diff() < 0).cumsum(-1, dtype=whole), (1, 0))  # equal logits have one rank
    bits = scores.gather(-1, order).view(whole)
    lowered = ((bits + rank).cummin(-1).values - rank).clamp_min(0).view(scores.dtype)
    return torch.empty_like(scores).scatter_(-1, order, lowered)


def in_order(scores: Tensor, logits: Tensor) -> Tensor:
    """Return scores (…, L) that have the order of the logits, also where rounding made them equal, such as near 1."""
    if scores.dtype not in (torch.float32, torch.float64):
        return scores
    return scores + (_in_order(scores, logits) - scores).detach()


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Let batch norm use batch statistics, without changing the running statistics."""
    layers = batch_norms(module)
    before = [(layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, (training, tracking) in zip(layers, before, strict=True):
            layer.training, layer.track_running_stats = training, tracking
