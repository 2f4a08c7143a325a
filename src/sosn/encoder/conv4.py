"""The four-block encoder of Relation Net, which SoSN shares (Fig. 2)."""

from typing import Literal

from torch import Tensor, nn

from sosn.layers import block, run


class Conv4(nn.Module):
    """Four blocks of 3×3 convolution, batch norm and ReLU, with 2×2 max-pooling after the first two.

    Images (B, C, H, W) → feature maps (B, width, h, w): 28² → 5², 84² → 19², 224² → 54².
    features="linear" leaves out the last ReLU, so that features may be negative.
    """

    def __init__(self, channels: int = 3, width: int = 64, features: Literal["relu", "linear"] = "relu") -> None:
        super().__init__()
        self.width = width
        self.blocks = nn.Sequential(
            *block(channels, width, padding=0, pool=True),
            *block(width, width, padding=0, pool=True),
            *block(width, width, padding=1, pool=False),
            *block(width, width, padding=1, pool=False),
        )
        if features == "linear":
            self.blocks.pop(-1)

    def forward(self, images: Tensor) -> Tensor:
        return run(self.blocks, images)

    @staticmethod
    def map_side(image_side: int) -> int:
        """Side of the feature map for a square image; 0 or less if the image is too small."""
        return ((image_side - 2) // 2 - 2) // 2
