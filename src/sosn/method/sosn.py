"""SoSN, the second-order similarity network."""

import math
import sys
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.encoder import ENCODER_EXTRAS, build_encoder
from sosn.encoder.preprocessing import Polarity, Preprocessing
from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.kernel import enabled
from sosn.method.base import (
    LossName,
    Method,
    above_zero,
    at_least,
    batch_norms,
    class_numbers,
    constructor_arguments,
    encode_together,
)
from sosn.method.initialisation import initialise
from sosn.method.test_time import check_copies, evaluation_copies
from sosn.permutation import draw_permutations, permute
from sosn.power_norm import PowerNorm, PowerNormName
from sosn.relation import Relation, RelationName, stack_pairs
from sosn.second_order import place_codes, upper_triangle
from sosn.similarity import SimilarityStreams
from sosn.util.precision import full, full_precision

PAIRS_AT_ONCE = {"cpu": 128, "cuda": 2_048}


class SoSN(Method):
    """Zhang & Koniusz, "Power Normalizing Second-order Similarity Network for Few-shot Learning", WACV 2019.

    Images are encoded to feature maps, summarised by power-normalised second-order matrices, and a similarity net compares
    the matrices of a class and a query (Eq. 5, 6, 11). Scores are its sigmoid. eta=None means N, the number of feature
    vectors; gamma=None means 100 for asinhe and 0.5 for gamma. Weights come from PyTorch's global generator, permutations
    from permutation_seed.

    Not the paper's, and off unless asked for: encoder="resnet12"; conv4_pools and conv4_blocks, how many
    blocks of Conv-4 pool and how many it has; coordinates, so many codes of a feature's place along either side, times
    coordinate_weight, appended to the feature vectors; mirror, scales and turns, in evaluation the vectors of the mirror
    image, and of copies of either, so many smaller, larger, and turned to either side, beside those of the image; detail,
    the side of training images that were enlarged to input_size; auxiliary, the weight of a second loss, to tell all
    training classes apart by their matrices; cosine, the weight of the cosine of two matrices' upper triangles, each entry
    standardised as in training, beside the similarity net's logit.
    """

    name: ClassVar[str] = "sosn"
    capturable: ClassVar[bool] = True
    classes_apart: ClassVar[bool] = True
    permutations: Tensor

    def __init__(
        self,
        channels: int = 3,
        relation: RelationName = "average",
        power_norm: PowerNormName = "sigme",
        eta: float | None = 100.0,
        gamma: float | None = None,
        rho: float = 0.5,
        softness: float | None = None,
        shift: float = 0.0,
        alpha: float = 1.0,
        trace_normalise: bool = True,
        permutations: int = 1,
        streams: int = 1,
        permutation_seed: int = 0,
        encoder: Literal["conv4", "resnet12"] = "conv4",
        encoder_width: int = 64,
        features: Literal["relu", "linear"] = "relu",
        conv4_pools: int = 2,
        conv4_blocks: int = 4,
        resnet12_width: int = 64,
        resnet12_pools: int = 3,
        resnet12_drop: float = 0.0,
        input_size: int = 84,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        polarity: Polarity = "as_is",
        mean_image: bool = False,
        coordinates: int = 0,
        coordinate_weight: float = 1.0,
        mirror: bool = False,
        scales: int = 0,
        turns: int = 0,
        auxiliary: float = 0.0,
        classes: int = 0,
        cosine: float = 0.0,
        detail: int = 0,
    ) -> None:
        config = constructor_arguments(locals())
        super().__init__()
        self.config = config
        at_least(1, encoder_width=encoder_width)
        if encoder not in ("conv4", "resnet12"):
            raise UsageError(f"encoder is {encoder!r}; choose conv4 or resnet12")
        if features not in ("relu", "linear"):
            raise UsageError(f"features is {features!r}; choose relu or linear")
        norm = PowerNorm(power_norm, eta, gamma, rho, softness)
        if features == "linear" and not norm.signed:
            raise UsageError(f"power_norm {power_norm!r} refuses negative co-occurrences, which features='linear' has")
        self.relation = Relation(relation, norm, shift, alpha, trace_normalise)
        self.preprocessing = Preprocessing(channels, input_size, mean, std, polarity, mean_image, detail)
        options = {name: config[name] for name in ENCODER_EXTRAS}
        self.encoder = build_encoder(encoder, channels, encoder_width, input_size, features, **options)
        at_least(0, coordinates=coordinates)
        above_zero(coordinate_weight=coordinate_weight)
        if not 0 <= cosine < math.inf:
            raise UsageError(f"cosine is {cosine}; the weight is 0 or more")
        self.coordinates, self.coordinate_weight = coordinates, coordinate_weight
        side = encoder_width + 2 * coordinates
        rows = self.relation.side(side)
        self.register_buffer("permutations", draw_permutations(rows, permutations, permutation_seed))
        self.similarity = SimilarityStreams(permutations, streams, self.relation.channels, rows)
        check_copies(mirror, scales, turns, eta, mean_image)
        if auxiliary < 0 or (auxiliary and classes < 2):
            raise UsageError(f"auxiliary is {auxiliary} with {classes} classes: it is 0 or more, and needs 2 classes or more")
        if cosine and not self.relation.stacked:
            raise UsageError(
                f"cosine compares matrices of each side, which relation {relation!r} has not: use average or ranked"
            )
        self.mirror, self.scales, self.turns, self.auxiliary, self.cosine = mirror, scales, turns, auxiliary, cosine
        entries = side * (side + 1) // 2
        self.standardise = nn.BatchNorm1d(entries, affine=False) if cosine else None
        initialise(self)
        self.classifier = nn.Linear(entries, classes) if auxiliary else None
        self.to(memory_format=torch.channels_last)  # 1.5 times faster on a CPU

    def logits(self, episode: Episode, separately: bool = False) -> Tensor:
        return self.compare(*self._maps(episode, separately))

    def _maps(self, episode: Episode, separately: bool = False) -> tuple[Tensor, Tensor]:
        """Feature maps of an episode, (E, L, Z, K, N) and (E, Q, K, N)."""
        support = self.preprocessing(episode.support.flatten(0, 2), self.dtype)
        query = self.preprocessing(episode.query.flatten(0, 1), self.dtype)
        support, query = encode_together(self._vectors, support, query, separately)
        return support.unflatten(0, episode.support.shape[:3]), query.unflatten(0, episode.query.shape[:2])

    def encode(self, images: Tensor) -> Tensor:
        """Feature maps (B, K, N) of images."""
        return self._vectors(self.preprocessing(images, self.dtype))

    def _vectors(self, images: Tensor) -> Tensor:
        """Feature vectors of preprocessed images, with their places if asked for; in evaluation those of copies too."""
        if self.training or not (self.mirror or self.scales or self.turns):
            return self._encode(images)
        copies = evaluation_copies(images, self.mirror, self.scales, self.turns)
        return torch.cat([self._encode(copy) for copy in copies], -1)

    def _encode(self, images: Tensor) -> Tensor:
        maps: Tensor = self.encoder(images)
        if self.coordinates:
            height, width = maps.shape[-2:]
            places = self.coordinate_weight * place_codes(height, width, self.coordinates, maps.device)
            maps = torch.cat((maps, places.to(maps.dtype).expand(maps.shape[0], -1, -1, -1)), 1)
        return maps.flatten(2)

    def shed(self) -> None:
        self.classifier, self.auxiliary = None, 0.0
        self.config = self.config | {"auxiliary": 0.0}

    def loss(self, episode: Episode, name: LossName = "mse") -> Tensor:
        """That of every method; auxiliary adds so many times the cross-entropy of telling all training classes apart."""
        if self.classifier is None:
            return super().loss(episode, name)
        support, query = self._maps(episode)
        loss = self.loss_of(self.compare(support, query), episode.labels, name)
        matrices = self.relation.describe_query(torch.cat((support.flatten(0, 2), query.flatten(0, 1))))[:, 0]
        truth = class_numbers(episode, self.classifier.out_features, "auxiliary")
        return loss + self.auxiliary * F.cross_entropy(full(self.classifier(upper_triangle(matrices, isometric=True))), truth)

    def compare(self, support: Tensor, query: Tensor) -> Tensor:
        """Feature maps (E, L, Z, K, N) and (E, Q, K, N) → similarity logits (E, Q, L)."""
        if self.relation.stacked:  # each image is permuted, and convolved, once for all its pairs
            return self.compare_described(self.describe(support), self._permute(self.relation.describe_query(query)))
        return self._score(self._permute(self.relation.describe_pairs(support, query)))

    def describe_images(self, images: Tensor) -> Tensor | None:
        """Matrices (B, S, K, K) of images, before they are permuted; None of a joint relation, which has none of one image."""
        return self.relation.describe_query(self.encode(images)) if self.relation.stacked else None

    def compare_images(self, support: Tensor, query: Tensor) -> Tensor:
        return self.compare_described(self._permute(support.squeeze(2)), self._permute(query))

    def describe(self, shots: Tensor) -> Tensor:
        """What a stacked relation remembers of classes: maps (…, Z, K, N) of their shots → (…, P, S, K, K)."""
        return self._permute(self.relation.describe_support(shots))

    def compare_described(self, support: Tensor, query: Tensor) -> Tensor:
        """What describe gave of classes (E, L, …) and of queries (E, Q, …), a query being one shot → logits (E, Q, L)."""
        if enabled():
            logits = self.similarity.pairs(support, query, self._pairs_at_once(query))
        else:
            logits = self._score(stack_pairs(support, query))
        return logits + self.nearness(support, query) if self.cosine else logits

    @full_precision
    def nearness(self, support: Tensor, query: Tensor) -> Tensor:
        """`cosine` times that of standardised matrices, of (E, L, P, S, K, K) and (E, Q, P, S, K, K) the first → (E, Q, L)."""
        assert self.standardise is not None
        sides = [upper_triangle(side[:, :, 0, 0]) for side in (support, query)]
        flat = self.standardise(torch.cat([side.flatten(0, 1) for side in sides]))
        classes, queries = flat.split([side.shape[0] * side.shape[1] for side in sides])
        classes, queries = (
            F.normalize(part, dim=-1).unflatten(0, side.shape[:2]) for part, side in zip((classes, queries), sides, strict=True)
        )
        cosines: Tensor = queries @ classes.mT
        return self.cosine * cosines

    def _score(self, pairs: Tensor) -> Tensor:
        flat = pairs.flatten(0, 2)
        parts = flat.split(min(self._pairs_at_once(flat), len(flat)))
        logits: Tensor = torch.cat([self.similarity(part) for part in parts])
        return logits.view(pairs.shape[:3])

    def _pairs_at_once(self, where: Tensor) -> int:
        """With running statistics a pair's score is its own, so pairs can go in parts that fit in fast memory."""
        if any(layer.training for layer in batch_norms(self.similarity)):
            return sys.maxsize
        return PAIRS_AT_ONCE.get(where.device.type, 128)

    def _permute(self, matrices: Tensor) -> Tensor:
        """All permutations of matrices (…, C, K, K) → (…, P, C, K, K); a single one is the identity."""
        return matrices.unsqueeze(-4) if len(self.permutations) == 1 else permute(matrices, self.permutations)
