"""Test-time augmentation: in evaluation, join the features of several copies of an image."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.util.warping import seen_through

STEP = 0.15  # from one size to the next, on a logarithmic scale
ANGLE = 6.0  # degrees from one rotated copy to the next
MOST = 4  # largest number of scales or turns: copies of about half to twice the size, and rotations up to 24 degrees


@dataclass(frozen=True)
class TestTimeAugmentation:
    """Copies of every image whose features a method joins with those of the image in evaluation; none by default.

    mirror: add the mirror image. scales: number of smaller copies, and of larger copies, of each. turns: number of copies
    rotated to the left, and to the right. A method defines how it joins the features of several copies.
    """

    __test__: ClassVar[bool] = False  # pytest would collect a class of this name

    mirror: bool = False  # the image and its mirror image
    scales: int = 0  # number of smaller copies, and of larger copies
    turns: int = 0  # number of copies rotated left, and right, in steps of 6 degrees

    def __post_init__(self) -> None:
        for name, count in (("scales", self.scales), ("turns", self.turns)):
            if type(count) is not int or count not in range(MOST + 1):
                raise UsageError(f"{name} is {count}; it must be a whole number from 0 to {MOST}")

    def __bool__(self) -> bool:
        return self.mirror or bool(self.scales or self.turns)

    def copies(self, images: Tensor) -> Iterator[Tensor]:
        """Yield images (B, C, H, W), their mirror images if mirror is on, and scaled and rotated copies of both."""
        for source in (images, images.flip(-1)) if self.mirror else (images,):
            yield source
            for step, sign in product(range(1, self.scales + 1), (1, -1)):
                yield scaled(source, math.exp(sign * STEP * step))
            for step, sign in product(range(1, self.turns + 1), (1, -1)):
                yield turned(source, sign * ANGLE * step)

    def episodes(self, episode: Episode) -> Iterator[Episode]:
        """Yield the episode, and copies in which all images are transformed in the same way."""
        sides = []
        for images in (episode.support, episode.query):
            flat = images.flatten(0, -4)
            sides.append(self.copies(flat / 255 if flat.dtype == torch.uint8 else flat))
        for support, query in zip(*sides, strict=True):
            yield replace(episode, support=support.view(episode.support.shape), query=query.view(episode.query.shape))


def scaled(images: Tensor, share: float) -> Tensor:
    """Enlarge the central share of images (B, C, H, W); a share above 1 shrinks them and repeats the border."""
    return _warped(images, ((share, 0.0), (0.0, share)))


def turned(images: Tensor, degrees: float) -> Tensor:
    """Rotate images (B, C, H, W) about the centre, anticlockwise, and repeat the border."""
    height, width = images.shape[-2:]
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return _warped(images, ((cosine, -sine * height / width), (sine * width / height, cosine)))


def _warped(images: Tensor, rows: tuple[tuple[float, float], tuple[float, float]]) -> Tensor:
    """Transform all images by one matrix about the centre, and keep their type."""
    precision = torch.promote_types(images.dtype, torch.float32)
    window = torch.tensor([[[*row, 0.0] for row in rows]], device=images.device, dtype=precision)
    return seen_through(images, window).to(images.dtype)
