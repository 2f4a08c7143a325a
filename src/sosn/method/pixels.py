"""Nearest pixels: a baseline without learning."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from sosn.method.base import Method, PreprocessingSpec, TestTimeSpec
from sosn.method.distance import nearness


class NearestPixels(Method):
    """Cosine similarity of inverted pixels to the mean image of each class. It has no weights to train."""

    name: ClassVar[str] = "pixels"
    usual_preprocessing: ClassVar[Mapping[str, Any]] = {"polarity": "inverted"}
    classes_apart: ClassVar[bool] = True
    fixed_size = True

    def __init__(
        self,
        channels: int = 1,
        input_size: int = 28,
        preprocessing: PreprocessingSpec = None,
        test_time: TestTimeSpec = None,
    ) -> None:
        super().__init__(channels, input_size, preprocessing, test_time)

    def encode(self, images: Tensor) -> Tensor:
        """Flatten images to pixels (B, C·H·W); in evaluation, average over all test-time copies."""
        pixels: Tensor = self.preprocessing(images, torch.float32)
        if self.training or not self.test_time:
            return pixels.flatten(1)
        return self.join([copy.flatten(1) for copy in self.test_time.copies(pixels)])

    def describe(self, shots: Tensor) -> Tensor:
        return shots.mean(-2)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        return nearness(queries, classes, "cosine")
