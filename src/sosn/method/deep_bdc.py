"""DeepBDC: describe images by Brownian distance covariance matrices."""

import math
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from sosn.method.base import Shared
from sosn.method.distance import MetricName, nearness
from sosn.method.encoded import SoftmaxMethod
from sosn.second_order import upper_triangle
from sosn.util.precision import full_precision

EPS = 1e-5  # keeps the square root differentiable


class DeepBDC(SoftmaxMethod):
    """Xie et al., "Joint Distribution Matters: Deep Brownian Distance Covariance for Few-Shot Classification", CVPR 2022.

    Implemented, from Meta DeepBDC: the BDC matrix of a feature map with a learnt scale, its upper triangle as descriptor,
    class means, inner products for one shot and minus squared distances for several, cross-entropy. The encoder is
    SoSN's, or `encoder="resnet12"`. Not implemented: pre-training (use `start` in a recipe), STL DeepBDC.
    """

    name: ClassVar[str] = "deep_bdc"
    capturable: ClassVar[bool] = True

    def __init__(self, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(2.0 * self.map_side**2)))

    def describe(self, shots: Tensor) -> Tensor:
        """The BDC matrix of each shot, as a vector: (…, Z, K, h, w) → (…, Z, D)."""
        return upper_triangle(bdc(shots.flatten(-2), self.log_scale))

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        metric: MetricName = "inner" if classes.shape[2] == 1 else "euclidean"
        return nearness(queries.squeeze(2), classes.mean(2), metric)


@full_precision
def bdc(features: Tensor, log_scale: Tensor) -> Tensor:
    """Distances between channels, √(s·‖χₖ−χₗ‖²+ε), minus the means of rows and columns: (…, K, N) → (…, K, K)."""
    inner = features @ features.mT
    squares = inner.diagonal(dim1=-2, dim2=-1)
    distances = (squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * inner).clamp(min=0)
    roots = (log_scale.exp() * distances + EPS).sqrt()
    rows, columns = roots.mean(-1, keepdim=True), roots.mean(-2, keepdim=True)
    return roots - rows - columns + rows.mean(-2, keepdim=True)
