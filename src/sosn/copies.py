"""Copies of an image whose features count beside its own in evaluation."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.warping import seen_through

STEP = 0.15  # from one size to the next, on a logarithmic scale
MOST = 4  # steps to either side: the smallest copy is about half as high and wide


def check_copies(mirror: bool, scales: int, eta: float | None, mean_image: bool) -> None:
    """Refuse options of a model that has copies and does not go with them."""
    if scales not in range(MOST + 1):
        raise UsageError(f"scales is {scales}; it is a whole number from 0 to {MOST}")
    if (mirror or scales) and eta is None:
        raise UsageError("eta=None means the number of feature vectors, and mirror and scales give more: give eta")
    if (mirror or scales) and mean_image:
        raise UsageError("mirror and scales change images after the mean image is taken away: leave mean_image out")


def evaluation_copies(images: Tensor, mirror: bool, scales: int) -> Iterator[Tensor]:
    """Images (B, C, H, W), their mirror images if asked for, and of each so many smaller and as many larger copies."""
    for one in (images, images.flip(-1)) if mirror else (images,):
        yield one
        for step in range(1, scales + 1):
            for sign in (1, -1):
                yield scaled(one, math.exp(sign * STEP * step))


def scaled(images: Tensor, share: float) -> Tensor:
    """Images (B, C, H, W) of which this share of either side is seen about the middle; beyond 1 their borders go on."""
    window = torch.tensor([[[share, 0.0, 0.0], [0.0, share, 0.0]]], device=images.device)
    return seen_through(images, window.to(torch.promote_types(images.dtype, torch.float32))).to(images.dtype)
