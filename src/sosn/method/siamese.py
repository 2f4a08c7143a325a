"""Siamese net: learns to say whether two images show the same."""

from collections.abc import Sequence
from typing import ClassVar, cast

from torch import Tensor, nn

from sosn.encoder import EncoderName
from sosn.encoder.preprocessing import Polarity
from sosn.method.base import LossName, at_least, constructor_arguments
from sosn.method.encoded import EncodedMethod
from sosn.util.precision import full


class SiameseNet(EncodedMethod):
    """Koch, Zemel & Salakhutdinov, "Siamese Neural Networks for One-shot Image Recognition", ICML workshop 2015.

    Taken: both images through the same network and a sigmoid layer, the learnt weighting of the absolute differences, its
    sigmoid as score, binary cross-entropy with as much weight on same as on different pairs, their initialisation of these
    two layers. Left out: their encoder (here one of ours), their pairs drawn one by one (here all pairs of an episode),
    layer-wise rates and their search. They have one shot; of several, the logits are averaged.
    """

    name: ClassVar[str] = "siamese"
    capturable: ClassVar[bool] = True
    classes_apart: ClassVar[bool] = True
    own_loss: ClassVar[LossName] = "binary_cross_entropy"

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
        embedding: int = 256,
    ) -> None:
        super().__init__(constructor_arguments(locals()))
        at_least(1, embedding=embedding)
        self.embed = nn.Sequential(nn.Linear(self.features, embedding), nn.Sigmoid())
        self.weigh = nn.Linear(embedding, 1)
        for layer in (self.embed[0], self.weigh):
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.weight, 0.0, 0.2)
            nn.init.normal_(layer.bias, 0.5, 0.01)

    def compare(self, support: Tensor, query: Tensor) -> Tensor:
        support, query = (full(cast(Tensor, self.embed(maps.flatten(-3)))) for maps in (support, query))
        differences = (query[:, :, None, None] - support.unsqueeze(1)).abs()  # (E, Q, L, Z, D)
        return full(cast(Tensor, self.weigh(differences))).squeeze(-1).mean(3)
