"""Prototypical Net: a class is the mean of its shots."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from sosn.encoder import EncoderName
from sosn.encoder.preprocessing import Polarity
from sosn.method.base import above_zero, constructor_arguments
from sosn.method.distance import MetricName, check_metric, nearness
from sosn.method.encoded import SoftmaxMethod
from sosn.util.precision import full


class PrototypicalNet(SoftmaxMethod):
    """Snell, Swersky & Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017.

    Taken: prototypes as means of embedded shots, softmax over minus squared Euclidean distances (or over cosines, times
    scale), cross-entropy. Training with more classes than at test time is the recipe's: way=20 val_way=5. Left out: zero-shot
    learning, and the separate choice of training shot, which is the recipe's too.
    """

    name: ClassVar[str] = "prototypical"
    capturable: ClassVar[bool] = True
    classes_apart: ClassVar[bool] = True

    def __init__(
        self,
        channels: int = 3,
        input_size: int = 84,
        encoder: EncoderName = "conv4_pooled",
        encoder_width: int = 64,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        polarity: Polarity = "as_is",
        mean_image: bool = False,
        metric: MetricName = "euclidean",
        scale: float = 1.0,
        resnet12_width: int = 64,
        resnet12_pools: int = 3,
        resnet12_drop: float = 0.0,
    ) -> None:
        super().__init__(constructor_arguments(locals()))
        check_metric(metric)
        above_zero(scale=scale)
        self.metric, self.scale = metric, scale

    def compare(self, support: Tensor, query: Tensor) -> Tensor:
        return self.scale * nearness(full(query).flatten(2), full(support).mean(2).flatten(2), self.metric)
