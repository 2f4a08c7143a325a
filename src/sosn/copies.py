"""Copies of an image, a little changed, whose features count beside its own in evaluation."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.precision import full

Window = tuple[tuple[float, float], tuple[float, float]]  # 2×2, what of the image is seen, about its middle
STEP = 0.15  # of sizes, on a logarithmic scale


def sizes(count: int) -> list[Window]:
    """So many smaller and as many larger sizes, each exp(STEP) times the one before."""
    scales = [math.exp(sign * STEP * step) for step in range(1, count + 1) for sign in (1, -1)]
    return [((scale, 0.0), (0.0, scale)) for scale in scales]


def ways(strength: float) -> list[Window]:
    """exp(±strength·G) for a basis G of the 2×2 matrices: the eight ways to change an image linearly, a little."""
    found: list[Window] = []
    for t in (strength, -strength):
        found += [
            ((math.exp(t), 0.0), (0.0, math.exp(t))),  # smaller or larger
            ((math.exp(t), 0.0), (0.0, math.exp(-t))),  # narrower or wider
            ((math.cosh(t), math.sinh(t)), (math.sinh(t), math.cosh(t))),  # stretched along a diagonal
            ((math.cos(t), math.sin(t)), (-math.sin(t), math.cos(t))),  # turned
        ]
    return found


def evaluation_copies(images: Tensor, mirror: bool, scales: int, affine: float) -> Iterator[Tensor]:
    """Images (B, C, H, W), their mirror images if asked for, and of each its copies at other sizes and by ways(affine)."""
    windows = sizes(scales) + (ways(affine) if affine else [])
    for one in (images, images.flip(-1)) if mirror else (images,):
        yield one
        for window in windows:
            yield seen_through(window, one)


def seen_through(window: Window, images: Tensor) -> Tensor:
    """What is seen of images (B, C, H, W) through a window; outside of them the border is repeated."""
    (a, b), (c, d) = window
    wide = full(images)  # bf16 cannot tell neighbouring pixels apart
    places = torch.tensor([[[a, b, 0.0], [c, d, 0.0]]], dtype=wide.dtype, device=wide.device)
    with torch.autocast(images.device.type, enabled=False):
        grid = F.affine_grid(places, [1, *images.shape[1:]], align_corners=False).expand(images.shape[0], -1, -1, -1)
        seen = F.grid_sample(wide, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return seen.to(images.dtype)
