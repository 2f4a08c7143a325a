"""Test-time augmentation: copies of an image whose features count beside its own in evaluation."""

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
MOST = 4  # steps to either side: the smallest copy is about half as high and wide, and rotations go up to 24 degrees


@dataclass(frozen=True)
class TestTimeAugmentation:
    """Which copies of every image a method looks at in evaluation, besides the image itself; none by default.

    mirror adds the mirror image; scales, so many smaller and as many larger copies of each; turns, so many copies rotated to
    either side. A method says how it joins the features of several copies.
    """

    __test__: ClassVar[bool] = False  # for pytest, which takes classes of this name for tests

    mirror: bool = False  # the image and its mirror image
    scales: int = 0  # smaller and larger copies, so many of each
    turns: int = 0  # copies rotated to the left and to the right, so many of each, 6 degrees apart

    def __post_init__(self) -> None:
        for name, count in (("scales", self.scales), ("turns", self.turns)):
            if type(count) is not int or count not in range(MOST + 1):
                raise UsageError(f"{name} is {count}; it is a whole number from 0 to {MOST}")

    def __bool__(self) -> bool:
        return self.mirror or bool(self.scales or self.turns)

    def copies(self, images: Tensor) -> Iterator[Tensor]:
        """Images (B, C, H, W), their mirror images if asked for, and of each the scaled and rotated copies."""
        for one in (images, images.flip(-1)) if self.mirror else (images,):
            yield one
            for step, sign in product(range(1, self.scales + 1), (1, -1)):
                yield scaled(one, math.exp(sign * STEP * step))
            for step, sign in product(range(1, self.turns + 1), (1, -1)):
                yield turned(one, sign * ANGLE * step)

    def episodes(self, episode: Episode) -> Iterator[Episode]:
        """The episode, and copies of it in which all images are changed alike."""
        sides = []
        for images in (episode.support, episode.query):
            flat = images.flatten(0, -4)
            sides.append(self.copies(flat / 255 if flat.dtype == torch.uint8 else flat))
        for support, query in zip(*sides, strict=True):
            yield replace(episode, support=support.view(episode.support.shape), query=query.view(episode.query.shape))


def scaled(images: Tensor, share: float) -> Tensor:
    """The middle of images (B, C, H, W), this share of either side, enlarged; above 1 they shrink, their border repeated."""
    return _seen(images, ((share, 0.0), (0.0, share)))


def turned(images: Tensor, degrees: float) -> Tensor:
    """Images (B, C, H, W) rotated about the middle, anticlockwise, their border repeated."""
    height, width = images.shape[-2:]
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return _seen(images, ((cosine, -sine * height / width), (sine * width / height, cosine)))


def _seen(images: Tensor, rows: tuple[tuple[float, float], tuple[float, float]]) -> Tensor:
    """Images through one window about the middle, in the precision they have."""
    precision = torch.promote_types(images.dtype, torch.float32)
    window = torch.tensor([[[*row, 0.0] for row in rows]], device=images.device, dtype=precision)
    return seen_through(images, window).to(images.dtype)
