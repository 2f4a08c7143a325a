"""Images seen through windows that are turned, slanted, scaled or shifted."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.util.precision import full


def seen_through(images: Tensor, windows: Tensor) -> Tensor:
    """What is seen of images (B, C, H, W) through windows (B, 2, 3), or (1, 2, 3) for all, in single precision or better.

    A window says where in an image each place comes from; places run from −1 to 1 along either side. Outside of an image its
    border is repeated.
    """
    wide = full(images)  # bf16 cannot tell neighbouring pixels apart
    with torch.autocast(images.device.type, enabled=False):
        grid = F.affine_grid(windows, [windows.shape[0], *images.shape[1:]], align_corners=False)
        grid = grid.expand(images.shape[0], -1, -1, -1)
        return F.grid_sample(wide, grid, mode="bilinear", padding_mode="border", align_corners=False)
