"""Siamese net: learn whether two images belong to the same class."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack, cast

from torch import Tensor, nn

from sosn.method.base import LossName, Shared
from sosn.method.encoded import EncodedMethod
from sosn.util.checks import at_least
from sosn.util.precision import full


class SiameseNet(EncodedMethod):
    """Koch, Zemel & Salakhutdinov, "Siamese Neural Networks for One-shot Image Recognition", ICML workshop 2015.

    Implemented: one network and a sigmoid layer for both images, a learnt weighting of the absolute differences with its
    sigmoid as score, binary cross-entropy with equal weight of same and different pairs, and their initialisation of these
    two layers. Different: the encoder is one of ours, and training uses all pairs of an episode. Not implemented: layer-wise
    learning rates and their search. They have one shot; here the logits of several shots are averaged.
    """

    name: ClassVar[str] = "siamese"
    usual_encoder: ClassVar[Mapping[str, Any] | None] = {"name": "conv4_pooled"}
    capturable: ClassVar[bool] = True
    classes_apart: ClassVar[bool] = True
    own_loss: ClassVar[LossName] = "binary_cross_entropy"

    def __init__(self, embedding: int = 256, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        at_least(1, embedding=embedding)
        self.embed = nn.Sequential(nn.Linear(self.features, embedding), nn.Sigmoid())
        self.weigh = nn.Linear(embedding, 1)
        for layer in (self.embed[0], self.weigh):
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.weight, 0.0, 0.2)
            nn.init.normal_(layer.bias, 0.5, 0.01)

    def describe(self, shots: Tensor) -> Tensor:
        """Embedding of each shot: (…, Z, K, h, w) → (…, Z, D)."""
        return full(cast(Tensor, self.embed(shots.flatten(-3))))

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        differences = (queries.unsqueeze(2) - classes.unsqueeze(1)).abs()  # (E, Q, L, Z, D)
        return full(cast(Tensor, self.weigh(differences))).squeeze(-1).mean(3)
