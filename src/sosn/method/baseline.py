"""Baseline and Baseline++: a classifier of the training classes, with a new head for new classes."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.episode import Episode, check_episode
from sosn.errors import UsageError
from sosn.method.base import LossName, Shared
from sosn.method.distance import nearness
from sosn.method.encoded import SoftmaxMethod
from sosn.power_norm import PowerNorm
from sosn.relation import Relation
from sosn.second_order import upper_triangle
from sosn.util.checks import above_zero, at_least, one_of
from sosn.util.precision import full, full_precision

FeaturesName = Literal["auto", "flat", "mean", "second_order"]
HeadName = Literal["fitted", "nearest"]
NEAREST_SCALE = 10.0  # factor of the cosines, so that their softmax separates classes


class Baseline(SoftmaxMethod):
    """Chen et al., "A Closer Look at Few-shot Classification", ICLR 2019: Baseline.

    Implemented: an encoder and a linear classifier, trained on all training classes; then, with a frozen encoder, a new
    linear head fitted to the support images of each task. Different: instead of batches of 4 with momentum, the head uses full
    gradients from zero, so that it is deterministic. All tasks of a batch are fitted in parallel.

    features: what is classified: the whole feature map (flat), its mean over positions, or the upper triangle of SoSN's
    second_order matrix (mean shift β, trace normalisation, SigmE with η′ = eta), which trains an encoder for SoSN. auto is mean
    for resnet12 and flat for other encoders. standard_scores: standardise each feature by its mean and deviation over the
    training images, with batch norm. head="nearest": predict by the cosine to the mean of a class's shots, without fitting.
    """

    name: ClassVar[str] = "baseline"
    usual_encoder: ClassVar[Mapping[str, Any] | None] = {"name": "conv4_pooled"}
    capturable: ClassVar[bool] = True
    adapts = True

    def __init__(
        self,
        classes: int = 64,
        adapt_steps: int = 100,
        adapt_rate: float = 0.01,
        adapt_decay: float = 0.001,
        features: FeaturesName = "auto",
        head: HeadName = "fitted",
        eta: float = 100.0,
        shift: float = 0.0,
        standard_scores: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        one_of(get_args(FeaturesName), features=features)
        one_of(get_args(HeadName), head=head)
        at_least(2, classes=classes)
        at_least(0, adapt_steps=adapt_steps)
        above_zero(adapt_rate=adapt_rate)
        usual = "mean" if self.encoder.pooled else "flat"
        self.described_by = usual if features == "auto" else features
        self.relation = Relation("average", PowerNorm("sigme", eta), shift)
        width = self.encoder.width
        if self.described_by != "flat":
            self.features = width if self.described_by == "mean" else width * (width + 1) // 2
        self.standardise = nn.BatchNorm1d(self.features, affine=False) if standard_scores else None
        self.nearest = head == "nearest"
        self.adapts = not self.nearest
        self.steps, self.rate, self.decay = adapt_steps, adapt_rate, adapt_decay
        self.classifier = self._new_classifier(classes)

    def _new_classifier(self, classes: int) -> nn.Linear:
        return nn.Linear(self.features, classes)

    def classify(self, vectors: Tensor) -> Tensor:
        """Logits of the training classes: (B, D) → (B, classes)."""
        return cast(Tensor, self.classifier(vectors))

    def describe(self, shots: Tensor) -> Tensor:
        """Vector of each shot, with standard_scores standardised: (…, Z, K, h, w) → (…, Z, D)."""
        return self.standardised(full(self.vectors(shots)))

    def vectors(self, maps: Tensor) -> Tensor:
        """Vectors of feature maps, as `features` says: (…, K, h, w) → (…, D)."""
        if self.described_by == "mean":
            return full(maps).mean((-2, -1))
        if self.described_by == "second_order":
            matrices = self.relation.describe_query(maps.flatten(-2)).squeeze(-3)
            return upper_triangle(matrices, isometric=self.standardise is None)  # SoSN's cosine standardises entries without √2
        return maps.flatten(-3)

    @full_precision
    def standardised(self, vectors: Tensor) -> Tensor:
        """Standardise vectors (…, D) by the statistics of training, if standard_scores is on."""
        if self.standardise is None:
            return vectors
        return cast(Tensor, self.standardise(vectors.flatten(0, -2))).view(vectors.shape)

    def head(self, support: Tensor, query: Tensor) -> Tensor:
        """Fit a new linear head to support vectors (E, L, Z, D); logits (E, Q, L) of query vectors (E, Q, D)."""
        return linear_head(support, query, self.steps, self.rate, self.decay)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        classes, queries = classes.detach(), queries.squeeze(2)
        if self.nearest:
            return NEAREST_SCALE * nearness(queries, classes.mean(2), "cosine")
        return self.head(classes, queries)

    def loss(self, episode: Episode, name: LossName = "cross_entropy") -> Tensor:
        """Cross-entropy over all training classes, of all support and query images. Refuses other losses."""
        check_episode(episode, "a loss")
        if name != "cross_entropy":
            raise UsageError(f"loss is {name!r}; method {self.name!r} is a classifier: set loss=cross_entropy")
        support, query = (self.vectors(maps) for maps in self._episode_features(episode))
        truth = class_numbers(episode, self.classifier.out_features, f"method {self.name!r}")
        vectors = self.standardised(torch.cat((support.flatten(0, 2), query.flatten(0, 1))))
        logits = full(self.classify(vectors))
        return F.cross_entropy(logits, truth)


class BaselinePlusPlus(Baseline):
    """Chen et al., "A Closer Look at Few-shot Classification", ICLR 2019: Baseline++.

    Like Baseline, with scaled cosines instead of linear layers, in training and in the head for new classes. That head
    starts at the mean directions of the classes (theirs: at random).
    """

    name: ClassVar[str] = "baseline++"

    def __init__(self, scale: float = 10.0, **options: Any) -> None:
        super().__init__(**options)
        above_zero(scale=scale)
        self.scale = scale

    def _new_classifier(self, classes: int) -> nn.Linear:
        return nn.Linear(self.features, classes, bias=False)

    def classify(self, vectors: Tensor) -> Tensor:
        return self.scale * F.normalize(full(vectors), dim=-1) @ F.normalize(self.classifier.weight, dim=-1).mT

    def head(self, support: Tensor, query: Tensor) -> Tensor:
        return cosine_head(support, query, self.steps, self.rate, self.decay, self.scale)


@full_precision
def linear_head(support: Tensor, query: Tensor, steps: int, rate: float, decay: float) -> Tensor:
    """Softmax regression by gradient descent from zero, with weight decay: (E, L, Z, D) and (E, Q, D) → logits (E, Q, L).

    The gradient is computed in closed form, without autograd.
    """
    images, truth = _flat(support)
    weight = images.new_zeros(len(images), support.shape[1], images.shape[-1])  # (E, L, D)
    bias = images.new_zeros(len(images), 1, support.shape[1])
    for _ in range(steps):
        error = ((images @ weight.mT + bias).softmax(-1) - truth) / images.shape[1]  # (E, L·Z, L)
        weight = weight - rate * (error.mT @ images + decay * weight)
        bias = bias - rate * (error.sum(1, keepdim=True) + decay * bias)
    return query @ weight.mT + bias


@full_precision
def cosine_head(support: Tensor, query: Tensor, steps: int, rate: float, decay: float, scale: float) -> Tensor:
    """Like linear_head, with scale·cosine instead of linear logits, starting at the mean directions of the classes."""
    images, truth = _flat(F.normalize(support, dim=-1))
    weight = F.normalize(support, dim=-1).mean(2)  # (E, L, D)
    for _ in range(steps):
        length = weight.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        direction = weight / length
        cosines = images @ direction.mT  # (E, L·Z, L)
        error = scale * ((scale * cosines).softmax(-1) - truth) / images.shape[1]
        along = (error * cosines).sum(1).unsqueeze(-1) * direction  # radial part, which does not change the cosine
        weight = weight - rate * ((error.mT @ images - along) / length + decay * weight)
    return scale * F.normalize(query, dim=-1) @ F.normalize(weight, dim=-1).mT


def class_numbers(episode: Episode, classes: int, name: str) -> Tensor:
    """Training class of every image of an episode, support images first: (E·L·Z + E·Q,)."""
    if episode.labels is None or episode.classes is None:
        raise UsageError(f"{name} trains on labels and class numbers, and the episode lacks them: draw it with EpisodeSampler")
    support = episode.classes.unsqueeze(-1).expand(episode.support.shape[:3]).flatten()
    truth = torch.cat((support, episode.classes.gather(1, episode.labels.long()).flatten()))
    if truth.device.type == "cpu" and int(truth.max()) >= classes:  # on a GPU the check would wait for the device
        raise UsageError(
            f"class number {int(truth.max())} is too high for {classes} classes: do not set classes, it follows the data"
        )
    return truth


def _flat(support: Tensor) -> tuple[Tensor, Tensor]:
    """Support vectors (E, L·Z, D) and their one-hot classes (L·Z, L)."""
    way, shot = support.shape[1:3]
    return support.flatten(1, 2), torch.eye(way, dtype=support.dtype, device=support.device).repeat_interleave(shot, 0)
