"""What a few-shot method is: images are encoded, classes and queries described, descriptions compared."""

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
    """Arguments that every method's constructor takes besides its own."""

    channels: int
    input_size: int
    encoder: EncoderSpec
    preprocessing: PreprocessingSpec
    test_time: TestTimeSpec


SHARED = tuple(Shared.__annotations__)


class Method(Recorded, nn.Module, ABC):
    """A few-shot learner: `method(episode)` gives scores E×Q×L, higher where query and class are more alike.

    A method that works image by image writes three verbs, each on batches:

        encode    images (B, C, H, W) → features (B, …)
        describe  features of the shots of a class (…, Z, …) → its description; a query is described as a class of one shot
        compare   descriptions of classes (E, L, …) and of queries (E, Q, …) → logits (E, Q, L)

    One that needs an episode as a whole (MAML) writes `_logits` instead. What else it can do it declares below. trained
    becomes true when weights are kept by a training run or loaded; whoever trains a method otherwise sets it.
    """

    name: ClassVar[str]
    own_loss: ClassVar[LossName] = "mse"  # that of its paper
    usual_encoder: ClassVar[Mapping[str, Any] | None] = None  # a table as `encoder=` takes it; None: it has no encoder
    usual_preprocessing: ClassVar[Mapping[str, Any]] = {}
    transductive: ClassVar[bool] = False  # whether the answer to one query depends on the other queries
    adapts: bool = False  # whether its weights change at test time
    capturable: ClassVar[bool] = False  # whether a training step never waits for the GPU, so that it can be a CUDA graph
    classes_apart: ClassVar[bool] = False  # whether the score of a class depends on it and the query, not on other classes
    second_order: Relation | None = None  # how it makes matrices of an image's features (B, K, N), if it does

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
        """Whether it encodes and describes images one by one, so that what is known of them can be kept."""
        return True

    @property
    def fixed_size(self) -> bool:
        """Whether the description of a class has the same size however many shots it has."""
        return False

    @property
    def exportable(self) -> bool:
        """Whether it can be written as ONNX."""
        return False

    @property
    def config(self) -> dict[str, Any]:
        """Plain values that build this method again; saved with its weights."""
        own = {name: value for name, value in self.arguments.items() if name not in SHARED}
        return own | {"preprocessing": self.preprocessing.table(), "test_time": vars(self.test_time)}

    def encode(self, images: Tensor) -> Tensor:
        """What describe needs to know of each image: (B, C, H, W) → (B, …)."""
        raise NotImplementedError(f"method {self.name!r} needs episodes as a whole: call it with an Episode")

    def describe(self, shots: Tensor) -> Tensor:
        """Features of the shots of classes (…, Z, …) → descriptions; by default the shots as they are."""
        return shots

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        """Descriptions of classes (E, L, …) and of queries (E, Q, …) → logits (E, Q, L)."""
        raise NotImplementedError(f"method {self.name!r} needs episodes as a whole: call it with an Episode")

    def compare_features(self, support: Tensor, query: Tensor) -> Tensor:
        """Features of support (E, L, Z, …) and query images (E, Q, …) → logits (E, Q, L)."""
        return self.compare(self.describe(support), self.describe(query.unsqueeze(2)))

    def join(self, copies: Sequence[Tensor]) -> Tensor:
        """Features of several copies of the same images, each (B, …), as one; by default their mean."""
        return torch.stack(list(copies)).mean(0)

    def score(self, logits: Tensor) -> Tensor:
        """Logits as similarities between 0 and 1."""
        return torch.sigmoid(logits)

    def forward(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
        """Scores E×Q×L.

        statistics="running" leaves batch norm in the mode the module is in. "batch" is the authors' transductive way: each
        episode is normalised by its own support images, query images and pairs, one episode after the other; nothing is
        remembered of them.
        """
        return self.score(self.logits(episode, statistics))

    def logits(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
        """Scores before they are squashed, E×Q×L. Rank by these: scores near 1 are the same to the bit."""
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
        """The class of each query, E×Q numbers in 0…L−1, in evaluation mode. Refuses a learnt method without training."""
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
        """Evaluate with this test-time augmentation from now on; None for none."""
        wanted = wanted if isinstance(wanted, TestTimeAugmentation) else TestTimeAugmentation(**dict(wanted or {}))
        if wanted and self.preprocessing.by_pixel:
            raise UsageError("test-time augmentation moves images after the mean image is subtracted: leave mean_image out")
        self.test_time = wanted

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
