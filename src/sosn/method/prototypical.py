"""Prototypical Net: describe a class by the mean of its shots."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from sosn.method.base import Shared
from sosn.method.distance import MetricName, check_metric, nearness
from sosn.method.encoded import SoftmaxMethod
from sosn.util.checks import above_zero
from sosn.util.precision import full


class PrototypicalNet(SoftmaxMethod):
    """Snell, Swersky & Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017.

    Implemented: prototypes as means of embedded shots, softmax over negative squared Euclidean distances (or over scaled
    cosines), cross-entropy. Set more training classes than test classes in the recipe: way=20 val_way=5; likewise the shot.
    Not implemented: zero-shot learning.
    """

    name: ClassVar[str] = "prototypical"
    usual_encoder: ClassVar[Mapping[str, Any] | None] = {"name": "conv4_pooled"}
    capturable: ClassVar[bool] = True
    classes_apart: ClassVar[bool] = True
    fixed_size = True

    def __init__(self, metric: MetricName = "euclidean", scale: float = 1.0, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        check_metric(metric)
        above_zero(scale=scale)
        self.metric, self.scale = metric, scale

    def describe(self, shots: Tensor) -> Tensor:
        """Mean map of the shots, as a vector: (…, Z, K, h, w) → (…, K·h·w)."""
        return full(shots).mean(-4).flatten(-3)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        return self.scale * nearness(queries, classes, self.metric)
