"""Affine transformations of images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.util.precision import full


def seen_through(images: Tensor, windows: Tensor) -> Tensor:
    """Transform images (B, C, H, W) by affine matrices (B, 2, 3), or one (1, 2, 3) for all, in float32 or better.

    A matrix maps positions of the output to positions of the input, from −1 to 1 along each axis. Outside an image, its border
    is repeated.
    """
    wide = full(images)  # bfloat16 cannot resolve neighbouring pixels
    with torch.autocast(images.device.type, enabled=False):
        grid = F.affine_grid(windows, [windows.shape[0], *images.shape[1:]], align_corners=False)
        grid = grid.expand(images.shape[0], -1, -1, -1)
        return F.grid_sample(wide, grid, mode="bilinear", padding_mode="border", align_corners=False)
