"""Read images for a model: resize them, and invert drawings with the wrong background."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sosn.classify.background import Inverting, background_for, inverted
from sosn.data.image import Images, Picture, read_images
from sosn.encoder.preprocessing import Preprocessing
from sosn.errors import SosnWarning


class Reader:
    """Reads images for one model, and counts the drawings that it inverts.

    polarity: "auto" inverts light-on-dark drawings for models trained on dark-on-light ones, or the reverse; "as_is" none.
    """

    def __init__(self, preprocessing: Preprocessing, polarity: Inverting = "auto") -> None:
        self.size, self.channels = preprocessing.source, preprocessing.channels
        self.background = background_for(preprocessing, polarity)
        self.read = self.inverted = 0

    def try_read(self, pictures: Sequence[Picture]) -> Images:
        """Read the images that can be read, and return the errors of the others with them."""
        found = read_images(pictures, self.size, self.channels)
        images, count = inverted(found.images, self.background)
        self.read, self.inverted = self.read + len(images), self.inverted + count
        return replace(found, images=images)

    def read_all(self, pictures: Sequence[Picture]) -> Tensor:
        """Read all images (B, C, H, W). Raises the error of the first that cannot be read."""
        return self.try_read(pictures).all()

    def warn(self, stacklevel: int = 2) -> None:
        """Warn if images were inverted since the last call, and say how to prevent it."""
        if self.inverted:
            ways = ("light on dark", "dark on light")
            given, known = ways if self.background == "light" else ways[::-1]
            warnings.warn(
                f"inverted {self.inverted} of {self.read} images from {given} to {known}, as the model was trained; "
                "polarity='as_is' (--polarity as_is) turns this off",
                SosnWarning,
                stacklevel=stacklevel + 1,
            )
        self.read = self.inverted = 0
