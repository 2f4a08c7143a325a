"""Nearest pixels: the floor that anything learnt must clear."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.encoder.preprocessing import Polarity, Preprocessing
from sosn.episode import Episode
from sosn.method.base import Method, constructor_arguments


class NearestPixels(Method):
    """Cosine similarity of raw pixels, dark counting as ink, to the mean image of each class. Learns nothing."""

    name: ClassVar[str] = "pixels"

    def __init__(self, channels: int = 1, input_size: int = 28, polarity: Polarity = "inverted") -> None:
        config = constructor_arguments(locals())
        super().__init__()
        self.config = config
        self.preprocessing = Preprocessing(channels, input_size, polarity=polarity)

    def logits(self, episode: Episode, separately: bool = False) -> Tensor:
        support = self.preprocessing(episode.support.flatten(0, 2), torch.float32).flatten(1)
        query = self.preprocessing(episode.query.flatten(0, 1), torch.float32).flatten(1)
        means = support.unflatten(0, episode.support.shape[:3]).mean(2)  # (E, L, pixels)
        return F.normalize(query.unflatten(0, episode.query.shape[:2]), dim=-1) @ F.normalize(means, dim=-1).mT
