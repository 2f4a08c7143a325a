"""DropBlock: dropout of square regions of feature maps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DropBlock(nn.Module):
    """Ghiasi, Lin & Le, "DropBlock: A regularization method for convolutional networks", NeurIPS 2018.

    In training, squares of `side` positions become 0, in each channel separately, about `share` of all positions; the rest
    is scaled up to keep the mean. In evaluation it does nothing. Maps (B, C, h, w) keep their shape. Random numbers
    come from PyTorch's global generator, which training seeds at every step.
    """

    def __init__(self, share: float, side: int = 5) -> None:
        super().__init__()
        self.share, self.side = share, side

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training:
            return maps
        height, width = maps.shape[-2:]
        side = min(self.side, height, width)
        rows, columns = height - side + 1, width - side + 1  # where a whole square may start
        rate = self.share * height * width / (side**2 * rows * columns)
        begins = torch.rand(*maps.shape[:2], rows, columns, device=maps.device) < rate
        dropped = F.max_pool2d(F.pad(begins.to(maps.dtype), [side - 1] * 4), side, stride=1)
        kept = 1 - dropped
        return maps * kept / kept.float().mean().clamp(min=1e-6).to(maps.dtype)
