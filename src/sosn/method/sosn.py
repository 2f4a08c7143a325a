"""SoSN, the second-order similarity network."""

import math
import sys
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.encoder import EncoderSpec
from sosn.errors import UsageError
from sosn.kernel import enabled
from sosn.method.base import PreprocessingSpec, TestTimeSpec, batch_norms
from sosn.method.encoded import EncodedMethod
from sosn.method.initialisation import initialise
from sosn.method.test_time import TestTimeAugmentation
from sosn.permutation import draw_permutations, permute
from sosn.power_norm import PowerNorm
from sosn.relation import Relation, RelationName, stack_pairs
from sosn.second_order import upper_triangle
from sosn.similarity import SimilarityStreams
from sosn.util.precision import full_precision

PAIRS_AT_ONCE = {"cpu": 128, "cuda": 2_048}


class SoSN(EncodedMethod):
    """Zhang & Koniusz, "Power Normalizing Second-order Similarity Network for Few-shot Learning", WACV 2019.

    An encoder maps images to feature maps, which power-normalised second-order matrices summarise. A similarity net compares
    the matrices of a class and a query (Eq. 5, 6, 11). Scores are the sigmoid of its logits. eta=None means N, the number of
    feature vectors; gamma=None means 100 for asinhe and 0.5 for gamma. Initial weights come from PyTorch's global generator,
    permutations from permutation_seed.

    cosine is not in the paper, and off by default: its weight times the cosine of the standardised upper triangles of both
    matrices is added to the logit of the similarity net.
    """

    name: ClassVar[str] = "sosn"
    capturable: ClassVar[bool] = True
    classes_apart: ClassVar[bool] = True
    starts_whole: ClassVar[bool] = True
    permutations: Tensor

    def __init__(
        self,
        channels: int = 3,
        relation: RelationName = "average",
        power_norm: str = "sigme",
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
        encoder: EncoderSpec = "conv4",
        input_size: int = 84,
        preprocessing: PreprocessingSpec = None,
        test_time: TestTimeSpec = None,
        cosine: float = 0.0,
    ) -> None:
        self.eta = eta
        super().__init__(channels, input_size, encoder, preprocessing, test_time)
        norm = PowerNorm(power_norm, eta, gamma, rho, softness)
        if not norm.signed and not self.encoder.non_negative:
            raise UsageError(
                f"power_norm {power_norm!r} refuses negative co-occurrences, and this encoder has negative features"
            )
        if not 0 <= cosine < math.inf:
            raise UsageError(f"cosine is {cosine}; it must be 0 or more, and finite")
        self.relation = Relation(relation, norm, shift, alpha, trace_normalise)
        if cosine and not self.relation.stacked:
            raise UsageError(
                f"cosine compares a matrix of each side, and relation {relation!r} has none: use average or ranked"
            )
        self.second_order = self.relation if self.relation.stacked else None
        rows = self.relation.side(self.encoder.width)
        self.register_buffer("permutations", draw_permutations(rows, permutations, permutation_seed))
        self.similarity = SimilarityStreams(permutations, streams, self.relation.channels, rows)
        self.cosine = cosine
        self.standardise = nn.BatchNorm1d(rows * (rows + 1) // 2, affine=False) if cosine else None
        initialise(self if self.owns_encoder else self.similarity)
        self.to(memory_format=torch.channels_last)  # 1.5 times faster on a CPU

    @property
    def fixed_size(self) -> bool:
        return self.relation.stacked

    @property
    def exportable(self) -> bool:
        return self.relation.stacked

    def use_test_time(self, wanted: TestTimeSpec) -> None:
        before = self.__dict__.get("test_time", TestTimeAugmentation())
        super().use_test_time(wanted)
        if self.test_time and self.eta is None:
            self.test_time = before
            raise UsageError("eta=None means the number of feature vectors, and test-time augmentation gives more: set eta")

    def _encode(self, images: Tensor) -> Tensor:
        """Feature vectors (B, K, N)."""
        return super()._encode(images).flatten(2)

    def join(self, copies: Sequence[Tensor]) -> Tensor:
        """Concatenate the feature vectors of all copies."""
        return torch.cat(list(copies), -1)

    def describe(self, shots: Tensor) -> Tensor:
        """Describe feature vectors of shots by permuted matrices: (…, Z, K, N) → (…, P, S, K, K).

        Joint relations (⊗+F, ⊗–⊙, ⊗–⊖) have no matrix of one side: they keep the feature vectors.
        """
        return self._permute(self.relation.describe_support(shots)) if self.relation.stacked else shots

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        if not self.relation.stacked:
            return self._pair_logits(self._permute(self.relation.describe_pairs(classes, queries.squeeze(2))))
        if enabled():  # convolves each image once, not once per pair
            logits = self.similarity.pairs(classes, queries, self._pairs_at_once(queries))
        else:
            logits = self._pair_logits(stack_pairs(classes, queries))
        return logits + self._cosines(classes, queries) if self.cosine else logits

    @full_precision
    def _cosines(self, classes: Tensor, queries: Tensor) -> Tensor:
        """Weighted cosines of the first, standardised matrices: (E, L, P, S, K, K), (E, Q, P, S, K, K) → (E, Q, L)."""
        assert self.standardise is not None
        sides = [upper_triangle(side[:, :, 0, 0]) for side in (classes, queries)]
        flat = self.standardise(torch.cat([side.flatten(0, 1) for side in sides]))
        parts = flat.split([side.shape[0] * side.shape[1] for side in sides])
        left, right = (F.normalize(part, dim=-1).unflatten(0, side.shape[:2]) for part, side in zip(parts, sides, strict=True))
        cosines: Tensor = right @ left.mT
        return self.cosine * cosines

    def _pair_logits(self, pairs: Tensor) -> Tensor:
        flat = pairs.flatten(0, 2)
        if torch.compiler.is_exporting():  # the exported graph takes any number of pairs at once
            logits: Tensor = self.similarity(flat)
        else:
            parts = flat.split(min(self._pairs_at_once(flat), len(flat)))
            logits = torch.cat([self.similarity(part) for part in parts])
        return logits.view(pairs.shape[:3])

    def _pairs_at_once(self, where: Tensor) -> int:
        """Number of pairs per batch: with running statistics scores are independent, so small batches can fit in cache."""
        if any(layer.training for layer in batch_norms(self.similarity)):
            return sys.maxsize
        return PAIRS_AT_ONCE.get(where.device.type, 128)

    def _permute(self, matrices: Tensor) -> Tensor:
        """Apply all permutations to matrices: (…, C, K, K) → (…, P, C, K, K)."""
        return matrices.unsqueeze(-4) if len(self.permutations) == 1 else permute(matrices, self.permutations)
