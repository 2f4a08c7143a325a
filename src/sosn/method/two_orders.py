"""Nearest class mean on first- and second-order statistics of feature maps, for frozen pretrained encoders."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.errors import UsageError
from sosn.method.base import Shared
from sosn.method.distance import nearness
from sosn.method.encoded import SoftmaxMethod
from sosn.power_norm import PowerNorm
from sosn.relation import Relation
from sosn.second_order import upper_triangle
from sosn.util.precision import full
from sosn.util.seeding import generator

SCALE = 20.0  # of the cosine in logits


class TwoOrders(SoftmaxMethod):
    """An image is two unit vectors side by side; a class is their mean; the cosine compares them. Not from a paper.

    First order: the mean over positions of a widened map, to the power `root`. Second order: SoSN's matrix (autocorrelation,
    trace normalisation, power norm; WACV 2019) of a reduced map. widen: channels of a 1×1 convolution with ReLU6 before the
    first; 0 means none. reduce: channels of a linear projection before the second; 0 means none. weight: of the second, in
    0…1.
    """

    name: ClassVar[str] = "two_orders"
    classes_apart: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    fixed_size = True

    def __init__(
        self,
        widen: int = 0,
        reduce: int = 0,
        weight: float = 0.5,
        root: float = 0.75,
        power_norm: str = "sigme",
        eta: float | None = 100.0,
        gamma: float | None = None,
        shift: float = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        if not 0 <= weight <= 1:
            raise UsageError(f"weight is {weight}; it must lie between 0 (first order) and 1 (second order)")
        if not 0 < root <= 1:
            raise UsageError(f"root is {root}; it must lie in 0 < root ≤ 1")
        width = self.encoder.width
        if not 0 <= reduce <= width or widen < 0:
            raise UsageError(f"reduce is {reduce} and widen is {widen}; the encoder has {width} channels")
        self.weight, self.root = weight, root
        self.relation = Relation("average", PowerNorm(power_norm, eta, gamma), shift)
        self.widen = nn.Conv2d(width, widen, 1) if widen else None
        self.reduce = nn.Conv2d(width, reduce, 1, bias=False) if reduce else None
        if self.reduce is not None:  # orthonormal rows, until weights are loaded
            basis = torch.linalg.qr(torch.randn(width, reduce, generator=generator("reduce", width, reduce)))[0]
            self.reduce.weight.data.copy_(basis.T[..., None, None])

    def _encode(self, images: Tensor) -> Tensor:
        return self.summarise(super()._encode(images))

    def summarise(self, maps: Tensor) -> Tensor:
        """Describe feature maps (B, K, h, w) by two unit vectors side by side: (B, D)."""
        wide = maps if self.widen is None else F.relu6(self.widen(maps))
        mean = full(wide).mean((-1, -2))
        first = F.normalize(mean.sign() * mean.abs().pow(self.root), dim=-1)
        narrow = (maps if self.reduce is None else self.reduce(maps)).flatten(2)
        matrix = self.relation.describe_query(narrow).squeeze(1)
        second = F.normalize(upper_triangle(matrix, isometric=True), dim=-1)
        return torch.cat(((1 - self.weight) ** 0.5 * first, self.weight**0.5 * second), -1)

    def join(self, copies: Sequence[Tensor]) -> Tensor:
        """The mean of the copies, as a unit vector."""
        return F.normalize(super().join(copies), dim=-1)

    def describe(self, shots: Tensor) -> Tensor:
        """Mean of the vectors of shots: (…, Z, D) → (…, D)."""
        return full(shots).mean(-2)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        return SCALE * nearness(queries, classes, "cosine")

    def score(self, logits: Tensor) -> Tensor:
        """The cosine, between 0 and 1."""
        return (logits / SCALE).clamp(0, 1)
