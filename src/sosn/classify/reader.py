"""Read images for a model: resize them, and turn drawings into those that it was trained on."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from sosn.classify.background import Inverting, background_for, inverted
from sosn.classify.drawing import LARGEST, standard
from sosn.classify.image_type import ImageType, type_of_pictures
from sosn.data.image import Images, Picture, read_image, read_images
from sosn.encoder.preprocessing import Preprocessing
from sosn.errors import SosnWarning


class Reader:
    """Reads images for one model, and counts the drawings that it inverts.

    polarity: "auto" inverts light-on-dark drawings for models trained on dark-on-light ones, or the reverse, and for models of
    grey drawings cleans the paper and draws strokes with the pen of the training images; "as_is" changes nothing.
    images: the type of all images, or None to look at each. Photos are never changed.
    """

    def __init__(self, preprocessing: Preprocessing, polarity: Inverting = "auto", images: ImageType | None = None) -> None:
        self.size, self.channels, self.pen = preprocessing.source, preprocessing.channels, preprocessing.pen
        self.crop = preprocessing.centre_crop
        self.background = background_for(preprocessing, polarity)
        self.images = images
        self.read = self.inverted = 0

    def try_read(self, pictures: Sequence[Picture]) -> Images:
        """Read the images that can be read, and return the errors of the others with them."""
        if self.background is None or self.images == "photos":
            return read_images(pictures, self.size, self.channels, self._photo)
        counts: list[int] = []  # threads append to it
        found = read_images(pictures, self.size, self.channels, lambda picture: self._drawing(picture, counts))
        self.read, self.inverted = self.read + len(found.images), self.inverted + sum(counts)
        return found

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

    def _photo(self, picture: Picture) -> Tensor:
        return read_image(picture, self.size, self.channels, self.crop or 1.0, fit="centre" if self.crop else "squash")

    def _drawing(self, picture: Picture, counts: list[int]) -> Tensor:
        """Read a drawing as the model's training images are; a photo stays as it is."""
        image = read_image(picture, LARGEST, 3, fit="whole").unsqueeze(0)
        if self.images is None and type_of_pictures([picture]) == "photos":
            return self._photo(picture)
        image, count = inverted(image, self.background)
        counts.append(count)
        if self.channels == 3:  # its training images may have colours
            return read_image(image[0], self.size, 3)
        light = image if self.background == "light" else 255 - image
        found = torch.from_numpy(standard(light[0].permute(1, 2, 0).numpy(), self.pen))
        return read_image(found if self.background == "light" else 255 - found, self.size, 1)
