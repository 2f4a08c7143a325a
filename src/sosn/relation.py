"""Relation descriptors ψ = ϑ({Φₙ}, Φ*): a class and a query as stacked matrices (Table 1).

Stacked relations describe support and query separately and stack the two descriptors. Joint relations need both at once.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.power_norm import PowerNorm
from sosn.second_order import autocorrelation, shift_mean, trace, trace_normalise
from sosn.util.precision import full, full_precision

RelationName = Literal["average", "ranked", "full", "or_like", "difference", "hadamard", "subtract"]
TRACE_EPS = 1e-6  # λ of Eq. 4


@dataclass(frozen=True)
class Relation:
    """A relation descriptor with its power normalisation, mean shift β and, for ⊕ and ⊖, the weight α.

    name: average ⊗ (Eq. 10), ranked ⊗+R (Eq. 9) or full ⊗+F (Eq. 8); or, from commented-out rows of the paper's source,
    or_like ⊗&⊕, difference ⊗&⊖, hadamard ⊗–⊙ or subtract ⊗–⊖. Refuses a power norm that cannot take the relation's signs.
    """

    name: RelationName = "average"
    power_norm: PowerNorm = field(default_factory=PowerNorm)
    shift: float = 0.0
    alpha: float = 1.0
    trace_normalise: bool = True

    def __post_init__(self) -> None:
        if self.name not in get_args(RelationName):
            raise UsageError(f"relation is {self.name!r}; choose one of {', '.join(get_args(RelationName))}")
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha is {self.alpha}; the weight α of ⊕ and ⊖ must lie between 0 and 1")
        if not 0 <= self.shift <= 1:
            raise UsageError(f"shift is {self.shift}; the mean shift β must lie between 0 and 1")
        if not self.power_norm.signed and (self.shift > 0 or self.name in ("difference", "subtract")):
            raise UsageError(
                f"power_norm {self.power_norm.name!r} refuses negative co-occurrences, and relation {self.name!r} with "
                f"shift={self.shift} has some: use sigme, asinhe or maxexp_pm"
            )

    @property
    def stacked(self) -> bool:
        """Whether support and query are described separately and then stacked."""
        return self.name in ("average", "ranked", "or_like", "difference")

    @property
    def side_channels(self) -> int:
        """S: number of matrices that describe one side of a stacked relation."""
        return 2 if self.name in ("or_like", "difference") else 1

    @property
    def channels(self) -> int:
        """Number of matrices that describe a pair."""
        return 2 * self.side_channels if self.stacked else 1

    def side(self, width: int) -> int:
        """Number of rows of a matrix, for feature vectors of width K."""
        return 2 * width if self.name == "full" else width

    def describe_support(self, maps: Tensor) -> Tensor:
        """Describe support maps, averaged over shots or pooled for ⊗+R: (…, Z, K, N) → (…, S, K, K). Stacked relations only."""
        if maps.shape[-3] == 1:
            return self._describe(maps.squeeze(-3), maps.shape[-1])
        if self.name == "ranked":
            return self._describe(maps.movedim(-3, -2).flatten(-2), maps.shape[-1])  # of (…, K, Z·N)
        return self._describe(full(maps).mean(-3), maps.shape[-1])

    def describe_query(self, maps: Tensor) -> Tensor:
        """Describe query maps: (…, K, N) → (…, S, K, K). Stacked relations only."""
        return self._describe(maps, maps.shape[-1])

    def _describe(self, maps: Tensor, vectors: int) -> Tensor:
        matrix = autocorrelation(maps, self.shift)
        scale = trace(matrix) + TRACE_EPS if self.trace_normalise else 1.0
        product = self.power_norm(matrix / scale, vectors)
        if self.side_channels == 1:
            return product.unsqueeze(-3)
        outer = self.power_norm(_outer_sum(maps, self.shift, -1 if self.name == "difference" else 1) / scale, vectors)
        return torch.stack((product, self.alpha * outer), -3)

    def describe_pairs(self, support: Tensor, query: Tensor) -> Tensor:
        """Describe every pair: support (E, L, Z, K, N) and query maps (E, Q, K, N) → (E, Q, L, channels, rows, rows)."""
        if self.stacked:
            return stack_pairs(self.describe_support(support), self.describe_query(query))
        vectors = query.shape[-1]
        if self.name == "full":
            matrix = _joint_autocorrelation(support, query, self.shift)
            return self.power_norm(self._normalise(matrix), vectors).unsqueeze(-3)
        class_matrix = self._normalise(autocorrelation(full(support).mean(-3), self.shift)).unsqueeze(1)  # (E, 1, L, K, K)
        query_matrix = self._normalise(autocorrelation(query, self.shift)).unsqueeze(2)  # (E, Q, 1, K, K)
        pair = class_matrix * query_matrix if self.name == "hadamard" else class_matrix - query_matrix
        return self.power_norm(pair, vectors).unsqueeze(-3)

    def _normalise(self, matrix: Tensor) -> Tensor:
        return trace_normalise(matrix, TRACE_EPS) if self.trace_normalise else matrix


def stack_pairs(support: Tensor, query: Tensor) -> Tensor:
    """Stack each class on each query, along the third mode: (E, L, …, S, K, K), (E, Q, …, S, K, K) → (E, Q, L, …, 2S, K, K)."""
    way, queries = support.shape[1], query.shape[1]
    left = support.unsqueeze(1).expand(-1, queries, *support.shape[1:])
    right = query.unsqueeze(2).expand(-1, -1, way, *query.shape[2:])
    return torch.cat((left, right), -3)


@full_precision
def _outer_sum(features: Tensor, shift: float, sign: int) -> Tensor:
    """Φ⊕Φᵀ/N (sign 1) or Φ⊖Φᵀ/N (sign −1), where M_ij = Σₙ (Φ_in ± Φ_jn). (…, K, N) → (…, K, K)."""
    mean = shift_mean(features, shift).mean(-1)
    return mean.unsqueeze(-1) + sign * mean.unsqueeze(-2)


@full_precision
def _joint_autocorrelation(support: Tensor, query: Tensor, shift: float) -> Tensor:
    """Φ̿Φ̿ᵀ/N of the vectors [φₙ ; φ*ₙ] of all shots (Eq. 8): (E, L, Z, K, N), (E, Q, K, N) → (E, Q, L, 2K, 2K).

    The blocks are sums over shots, so only the two off-diagonal blocks need a product for each pair.
    """
    shots, vectors = support.shape[2], support.shape[-1]
    pooled = shift_mean(support.movedim(2, -2).flatten(-2), shift)  # (E, L, K, Z·N), with one mean over all shots
    support_block = pooled @ pooled.mT / vectors  # (E, L, K, K)
    shifted = shift_mean(query.to(support.dtype), shift)
    query_block = shots * (shifted @ shifted.mT) / vectors  # (E, Q, K, K)
    summed = pooled.unflatten(-1, (shots, vectors)).sum(-2)  # (E, L, K, N)
    cross = torch.einsum("elkn,eqjn->eqlkj", summed, shifted) / vectors  # (E, Q, L, K, K)
    support_block = support_block.unsqueeze(1).expand_as(cross)
    query_block = query_block.unsqueeze(2).expand_as(cross)
    return torch.cat((torch.cat((support_block, cross), -1), torch.cat((cross.mT, query_block), -1)), -2)
