"""Copies of an image whose features count beside its own in evaluation."""

import math
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.util.warping import seen_through

STEP = 0.15  # from one size to the next, on a logarithmic scale
ANGLE = 6.0  # degrees from one turned copy to the next
MOST = 4  # steps to either side: the smallest copy is about half as high and wide, and turns go up to 24 degrees


def check_copies(mirror: bool, scales: int, turns: int, eta: float | None, mean_image: bool) -> None:
    """Refuse options of a model that has copies and does not go with them."""
    for name, count in (("scales", scales), ("turns", turns)):
        if type(count) is not int or count not in range(MOST + 1):
            raise UsageError(f"{name} is {count}; it is a whole number from 0 to {MOST}")
    asked = [name for name, on in (("mirror", mirror), ("scales", scales), ("turns", turns)) if on]
    if asked and eta is None:
        raise UsageError(f"eta=None means the number of feature vectors, and {asked[0]} gives more: give eta")
    if asked and mean_image:
        raise UsageError(f"{asked[0]} changes images after the mean image is taken away: leave mean_image out")


def evaluation_copies(images: Tensor, mirror: bool, scales: int, turns: int) -> Iterator[Tensor]:
    """Images (B, C, H, W), their mirror images if asked for, and of each so many smaller, larger, and turned to either side."""
    for one in (images, images.flip(-1)) if mirror else (images,):
        yield one
        for step, sign in product(range(1, scales + 1), (1, -1)):
            yield scaled(one, math.exp(sign * STEP * step))
        for step, sign in product(range(1, turns + 1), (1, -1)):
            yield turned(one, sign * ANGLE * step)


def scaled(images: Tensor, share: float) -> Tensor:
    """Images (B, C, H, W) of which this share of either side is seen about the middle; beyond 1 their borders go on."""
    return _seen(images, ((share, 0.0), (0.0, share)))


def turned(images: Tensor, degrees: float) -> Tensor:
    """Images (B, C, H, W) turned about the middle, anticlockwise; what comes in from outside goes on as the border does."""
    height, width = images.shape[-2:]
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return _seen(images, ((cosine, -sine * height / width), (sine * width / height, cosine)))


def _seen(images: Tensor, rows: tuple[tuple[float, float], tuple[float, float]]) -> Tensor:
    """Images through one window about the middle, in the precision they have."""
    precision = torch.promote_types(images.dtype, torch.float32)
    window = torch.tensor([[[*row, 0.0] for row in rows]], device=images.device, dtype=precision)
    return seen_through(images, window).to(images.dtype)
