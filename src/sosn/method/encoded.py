"""What methods share whose images all go through one encoder first."""

from typing import Any, cast

import torch
from torch import Tensor

from sosn.encoder import ENCODER_EXTRAS, build_encoder
from sosn.encoder.preprocessing import Preprocessing
from sosn.episode import Episode
from sosn.method.base import Method, encode_together
from sosn.method.initialisation import initialise


class EncodedMethod(Method):
    """A method that looks at feature maps.

    Its constructor takes channels, input_size, encoder, encoder_width, mean, std, polarity and mean_image among others,
    some also the options of encoders, and hands all its arguments over as config. The encoder starts as SoSN's does; what a
    method adds to it, as PyTorch has it.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        channels, size = config["channels"], config["input_size"]
        standardised = (config["mean"], config["std"], config["polarity"], config["mean_image"])
        self.preprocessing = Preprocessing(channels, size, *standardised)
        options = {name: config[name] for name in ENCODER_EXTRAS if name in config}
        self.encoder = build_encoder(config["encoder"], channels, config["encoder_width"], size, **options)
        self.map_side = self.encoder.map_side(size)
        self.features = self.encoder.width * self.map_side**2  # numbers that describe an image
        initialise(self.encoder)
        self.encoder.to(memory_format=torch.channels_last)

    def logits(self, episode: Episode, separately: bool = False) -> Tensor:
        return self.compare(*self.maps(episode, separately))

    def encode(self, images: Tensor) -> Tensor | None:
        """Feature maps (B, K, h, w) of images."""
        return cast(Tensor, self.encoder(self.preprocessing(images, self.dtype)))

    def maps(self, episode: Episode, separately: bool = False) -> tuple[Tensor, Tensor]:
        """Feature maps of an episode, which compare takes: support (E, L, Z, K, h, w), query (E, Q, K, h, w)."""
        support, query = self.images(episode)
        support, query = encode_together(self.encoder, support, query, separately)
        return support.unflatten(0, episode.support.shape[:3]), query.unflatten(0, episode.query.shape[:2])

    def images(self, episode: Episode) -> tuple[Tensor, Tensor]:
        """Images as the encoder takes them: support (E·L·Z, C, H, W), query (E·Q, C, H, W)."""
        support = self.preprocessing(episode.support.flatten(0, 2), self.dtype)
        return support, self.preprocessing(episode.query.flatten(0, 1), self.dtype)


class SoftmaxMethod(EncodedMethod):
    """One whose scores are probabilities of the classes, softmax of the logits."""

    own_loss = "cross_entropy"

    def score(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)
