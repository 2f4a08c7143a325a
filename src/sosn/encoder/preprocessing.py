"""Preprocessing of images: size, channels, polarity and standardisation."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.errors import UsageError
from sosn.util.recorded import Recorded

Polarity = Literal["as_is", "inverted"]


class Preprocessing(Recorded, nn.Module):
    """uint8 0–255 or float 0–1 images of any size → standardised floats with the model's size and channels.

    (B, c, h, w) → (B, channels, size, size). Images are resized with antialiasing. Colour becomes grey by luma; grey becomes
    colour by repeating the channel. polarity="inverted" turns x into 1 − x. mean and std refer to images in 0…1, after
    inversion. mean_image=True subtracts an image instead of a mean; it is saved with the weights, and 0 until `take_mean` is
    called. detail: if the training images were enlarged, their original side. Every image is first resized to it, so that no
    image is sharper than the training images. 0 means no such step. pen: width of the strokes of the training images, as a
    share of their side, with which FewShotClassifier draws drawings again; 0 leaves strokes as they are.
    centre_crop: 0 squashes whole images to a square; otherwise
    the central square with this share of the short side is cut out. Images that already have the model's size are not cut.
    """

    mean: Tensor
    std: Tensor
    mean_image: Tensor

    def __init__(
        self,
        channels: int = 3,
        input_size: int = 84,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        polarity: Polarity = "as_is",
        mean_image: bool = False,
        detail: int = 0,
        pen: float = 0.0,
        centre_crop: float = 0.0,
    ) -> None:
        super().__init__()
        size = input_size
        if not 0 <= detail <= size:
            raise UsageError(f"detail is {detail}; it must lie between 0 (off) and the input size, {size}")
        if not 0 <= pen < 1:
            raise UsageError(f"pen is {pen}; it must lie between 0 (unknown) and 1, the side of an image")
        if not 0 <= centre_crop <= 1:
            raise UsageError(f"centre_crop is {centre_crop}; it must lie between 0 (off) and 1")
        if channels not in (1, 3):
            raise UsageError(f"channels is {channels}; it must be 1 (grey) or 3 (colour)")
        if polarity not in ("as_is", "inverted"):
            raise UsageError(f"polarity is {polarity!r}; choose as_is or inverted")
        if mean_image and mean is not None:
            raise UsageError("mean and mean_image are both given: choose one, the mean of each channel or of each pixel")
        self.channels, self.size, self.polarity, self.detail = channels, size, polarity, detail
        self.pen, self.centre_crop = pen, centre_crop
        self.plain = mean is None and std is None and not mean_image
        self.by_pixel = mean_image
        if mean_image:
            self.register_buffer("mean_image", torch.zeros(channels, size, size))
        defaults = {"mean": (mean, 0.0), "std": (std, 1.0)}
        for name, (given, default) in defaults.items():
            values = [default] * channels if given is None else list(given)
            if len(values) != channels:
                raise UsageError(f"{name} has {len(values)} values; {channels} channels need {channels}")
            self.register_buffer(name, torch.tensor(values, dtype=torch.get_default_dtype()).view(-1, 1, 1), persistent=False)
        if not (self.std > 0).all():
            raise UsageError(f"std is {self.std.flatten().tolist()}; every value must be above 0")

    def table(self) -> dict[str, Any]:
        """The options that rebuild it, as plain values."""
        return dict(self.arguments)

    @property
    def source(self) -> int:
        """Side of the images that it should be given."""
        return self.detail or self.size

    @property
    def brightness(self) -> float | None:
        """Mean of the training images, between 0 and 1, before inversion; None if unknown."""
        mean = float((self.mean_image if self.by_pixel else self.mean).mean())
        if not 0 < mean < 1:
            return None
        return 1 - mean if self.polarity == "inverted" else mean

    def forward(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        images = self._fitted(images, dtype)
        if self.plain:
            return images
        mean = self.mean_image if self.by_pixel else self.mean
        return (images - mean.to(dtype)) / self.std.to(dtype)

    @torch.no_grad()
    def take_mean(self, image: Tensor) -> None:
        """Set the mean image to subtract, (c, h, w) floats in 0…1; it is resized and converted like any other image."""
        self.mean_image.copy_(
            self._fitted(image.unsqueeze(0), torch.float64)[0]
        )  # all steps are linear, so the result is still the mean

    def _fitted(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert images to 0…1 and to the model's size, channels and polarity."""
        images = images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
        if images.shape[-3] not in (1, 3):
            raise UsageError(f"images have {images.shape[-3]} channels; they must have 1 (grey) or 3 (colour)")
        if images.shape[-3] == 3 and self.channels == 1:
            red, green, blue = images.split(1, -3)
            images = 0.299 * red + 0.587 * green + 0.114 * blue
        elif images.shape[-3] < self.channels:
            images = images.expand(-1, self.channels, -1, -1)
        if self.centre_crop and images.shape[-2:] != (self.source, self.source):
            images = _central_square(images, self.centre_crop)
        for side in (self.source, self.size):
            if images.shape[-2:] != (side, side):
                images = F.interpolate(images, (side, side), mode="bilinear", antialias=True, align_corners=False)
        return 1 - images if self.polarity == "inverted" else images


def _central_square(images: Tensor, share: float) -> Tensor:
    """Cut out the central square with this share of the short side."""
    side = max(1, round(share * min(images.shape[-2:])))
    top, left = ((length - side) // 2 for length in images.shape[-2:])
    return images[..., top : top + side, left : left + side]
