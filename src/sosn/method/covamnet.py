"""CovaMNet: describe a class by the covariance of its local features."""

from typing import ClassVar, Unpack, cast

from torch import Tensor, nn

from sosn.errors import UsageError
from sosn.method.base import Shared
from sosn.method.encoded import SoftmaxMethod
from sosn.util.precision import full, full_precision


class CovaMNet(SoftmaxMethod):
    """Li et al., "Distribution Consistency Based Covariance Metric Networks for Few-Shot Learning", AAAI 2019.

    Implemented: the covariance Σ of all local features of a class's shots, the covariance metric qᵀΣq of each centred local
    feature of a query, a learnt weighting of positions, cross-entropy. Not implemented: dropout in that weighting, and the
    leaky ReLU before it, which has no effect because the metric is never negative. The encoder is SoSN's.
    """

    name: ClassVar[str] = "covamnet"
    capturable: ClassVar[bool] = True
    classes_apart: ClassVar[bool] = True

    def __init__(self, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        if self.map_side < 2:
            raise UsageError(
                f"covamnet needs feature maps of 2×2 or larger, not {self.map_side}×{self.map_side}: use larger images or conv4"
            )
        self.positions = nn.Linear(self.map_side**2, 1, bias=False)

    def describe(self, shots: Tensor) -> Tensor:
        """All local features of the shots: (…, Z, K, h, w) → (…, K, Z·N)."""
        return shots.flatten(-2).movedim(-3, -2).flatten(-2)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        similarities = covariance_metric(queries, covariance(classes))
        return full(cast(Tensor, self.positions(similarities))).squeeze(-1)


@full_precision
def covariance(features: Tensor) -> Tensor:
    """Unbiased covariance of feature vectors: (…, K, M) → (…, K, K)."""
    centred = features - features.mean(-1, keepdim=True)
    return centred @ centred.mT / (features.shape[-1] - 1)


@full_precision
def covariance_metric(query: Tensor, covariances: Tensor) -> Tensor:
    """qᵀΣq of each centred local feature: (E, Q, K, N) and (E, L, K, K) → (E, Q, L, N)."""
    centred = (query - query.mean(-1, keepdim=True)).unsqueeze(2)  # (E, Q, 1, K, N)
    return (centred * (covariances.unsqueeze(1) @ centred)).sum(-2)
