"""Relation Net: a small network learns to compare feature maps."""

from typing import ClassVar, Unpack, cast

import torch
from torch import Tensor, nn

from sosn.errors import UsageError
from sosn.kernel.blocks import block, run
from sosn.method.base import Shared
from sosn.method.encoded import EncodedMethod
from sosn.method.initialisation import initialise
from sosn.relation import stack_pairs

HIDDEN = 8  # units of the first fully connected layer


class RelationNet(EncodedMethod):
    """Sung et al., "Learning to Compare: Relation Network for Few-Shot Learning", CVPR 2018.

    Implemented: the encoder, the sum of the maps of a class's shots, stacked class and query maps, the relation module with
    its sigmoid as score, mean squared error, and the authors' initialisation. Set gradient clipping in the recipe: clip=0.5
    (the authors clip the two networks separately). Not implemented: zero-shot learning and its deeper networks.
    """

    name: ClassVar[str] = "relation_net"
    capturable: ClassVar[bool] = True
    fixed_size = True

    def __init__(self, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.relation = RelationModule(self.encoder.width, self.map_side)
        initialise(self.relation)
        self.relation.to(memory_format=torch.channels_last)

    def describe(self, shots: Tensor) -> Tensor:
        """Sum of the maps of the shots: (…, Z, K, h, w) → (…, K, h, w)."""
        return shots.sum(-4)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        pairs = stack_pairs(classes, queries)  # (E, Q, L, 2K, h, w)
        return cast(Tensor, self.relation(pairs.flatten(0, 2))).view(pairs.shape[:3])


class RelationModule(nn.Module):
    """Two blocks of 3×3 convolution, batch norm, ReLU and 2×2 max-pooling, then FC 8, ReLU, FC 1: (B, 2K, h, w) → (B,).

    Maps of 10×10 or larger (84² images) are not padded: 19 → 8 → 3. Smaller maps (28² images) are: 5 → 2 → 1. Refuses maps
    smaller than 4×4.
    """

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        padding = 0 if side >= 10 else 1
        end = side
        for _ in range(2):
            end = (end - 2 + 2 * padding) // 2
        if end < 1:
            raise UsageError(
                f"the relation module needs feature maps of 4×4 or larger, not {side}×{side}: use larger images or conv4"
            )
        self.blocks = nn.Sequential(*block(2 * width, width, padding, pool=True), *block(width, width, padding, pool=True))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(width * end * end, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, pairs: Tensor) -> Tensor:
        return cast(Tensor, self.head(run(self.blocks, pairs))).squeeze(-1)
