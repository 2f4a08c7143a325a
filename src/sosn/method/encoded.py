"""Base classes of methods that have an encoder."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sosn.encoder import EncoderSpec, build_encoder
from sosn.episode import Episode
from sosn.method.base import Method, PreprocessingSpec, TestTimeSpec
from sosn.method.initialisation import initialise


class EncodedMethod(Method):
    """A method that works on the feature maps of an encoder.

    encoder: a name, a table with a name and options, or a module that maps images to feature maps. A module keeps its
    weights; other encoders get the authors' initialisation. preprocessing: a Preprocessing or a table of its options.
    """

    usual_encoder: ClassVar[Mapping[str, Any] | None] = {"name": "conv4"}
    starts_whole: ClassVar[bool] = False  # whether its constructor initialises the encoder too

    def __init__(
        self,
        channels: int = 3,
        input_size: int = 84,
        encoder: EncoderSpec = "",
        preprocessing: PreprocessingSpec = None,
        test_time: TestTimeSpec = None,
    ) -> None:
        super().__init__(channels, input_size, preprocessing, test_time)
        size = self.preprocessing.size
        if isinstance(encoder, Mapping) and "name" not in encoder:
            encoder = {**(self.usual_encoder or {}), **encoder}
        self.encoder = build_encoder(encoder or self.usual_encoder or "conv4", self.preprocessing.channels, size)
        self.map_side = self.encoder.map_side(size)
        self.features = self.encoder.width * self.encoder.positions(size)  # numbers that describe an image
        self.owns_encoder = not isinstance(encoder, nn.Module)
        if self.owns_encoder and not self.starts_whole:
            initialise(self.encoder)
            self.encoder.to(memory_format=torch.channels_last)  # after initialise, so that a seed gives the same weights

    @property
    def config(self) -> dict[str, Any]:
        return super().config | {"encoder": self.encoder.table()}

    def encode(self, images: Tensor) -> Tensor:
        """Features of images: maps (B, K, h, w), or what a method makes of them."""
        return self._features(self.preprocessing(images, self.dtype))

    def _features(self, images: Tensor) -> Tensor:
        """Features of preprocessed images; in evaluation, joined over all test-time copies."""
        if self.training or not self.test_time:
            return self._encode(images)
        return self.join([self._encode(copy) for copy in self.test_time.copies(images)])

    def _encode(self, images: Tensor) -> Tensor:
        maps: Tensor = self.encoder(images)
        return maps

    def _logits(self, episode: Episode, separately: bool) -> Tensor:
        return self.compare_features(*self._episode_features(episode, separately))

    def _episode_features(self, episode: Episode, separately: bool = False) -> tuple[Tensor, Tensor]:
        """Features of an episode's images: support (E, L, Z, …), query (E, Q, …).

        All images pass the encoder as one batch; with separately, support and query are two batches.
        """
        support, query = self._images(episode)
        if separately:
            support, query = self._features(support), self._features(query)
        else:
            both = self._features(torch.cat((support, query)))
            support, query = both[: len(support)], both[len(support) :]
        return support.unflatten(0, episode.support.shape[:3]), query.unflatten(0, episode.query.shape[:2])

    def _images(self, episode: Episode) -> tuple[Tensor, Tensor]:
        """Preprocessed images: support (E·L·Z, C, H, W), query (E·Q, C, H, W)."""
        support = self.preprocessing(episode.support.flatten(0, 2), self.dtype)
        return support, self.preprocessing(episode.query.flatten(0, 1), self.dtype)


class SoftmaxMethod(EncodedMethod):
    """A method whose scores are class probabilities, the softmax of the logits."""

    own_loss = "cross_entropy"

    def score(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)
