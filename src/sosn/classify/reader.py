"""Pictures as a model takes them: read once, sized, and inverted where the model knows the other background."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sosn.classify.background import Inverting, background_for, inverted
from sosn.data.image import Images, Picture, read_images
from sosn.encoder.preprocessing import Preprocessing
from sosn.errors import SosnWarning


class Reader:
    """Reads pictures for one model, and counts how many drawings it inverted.

    polarity="auto" inverts drawings on the other background than those that the model was trained on; "as_is" none.
    """

    def __init__(self, preprocessing: Preprocessing, polarity: Inverting = "auto") -> None:
        self.size, self.channels = preprocessing.source, preprocessing.channels
        self.background = background_for(preprocessing, polarity)
        self.read = self.inverted = 0

    def try_read(self, pictures: Sequence[Picture]) -> Images:
        """The images of those pictures that can be read, and the errors of the others."""
        found = read_images(pictures, self.size, self.channels)
        images, count = inverted(found.images, self.background)
        self.read, self.inverted = self.read + len(images), self.inverted + count
        return replace(found, images=images)

    def read_all(self, pictures: Sequence[Picture]) -> Tensor:
        """The images (B, C, H, W) of all pictures. Raises the error of the first that cannot be read."""
        return self.try_read(pictures).all()

    def warn(self, stacklevel: int = 2) -> None:
        """Say how many pictures were inverted since the last time, if any, and how to have them left as they are."""
        if self.inverted:
            ways = ("light on dark", "dark on light")
            given, known = ways if self.background == "light" else ways[::-1]
            warnings.warn(
                f"inverted {self.inverted} of {self.read} images from {given} to {known}, as the model was trained; "
                "polarity='as_is' (--polarity as_is) leaves images as they are",
                SosnWarning,
                stacklevel=stacklevel + 1,
            )
        self.read = self.inverted = 0
