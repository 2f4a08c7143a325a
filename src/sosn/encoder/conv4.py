"""The four-block encoder of Relation Net, which SoSN shares (Fig. 2)."""

from typing import Literal, cast

from torch import Tensor, nn


class Conv4(nn.Module):
    """Four blocks of 3×3 convolution, batch norm and ReLU, with 2×2 max-pooling after the first two.

    Images (B, C, H, W) → feature maps (B, width, h, w): 28² → 5², 84² → 19², 224² → 54².
    features="linear" leaves out the last ReLU, so that features may be negative.
    """

    def __init__(self, channels: int = 3, width: int = 64, features: Literal["relu", "linear"] = "relu") -> None:
        super().__init__()
        self.width = width
        self.blocks = nn.Sequential(
            *_block(channels, width, padding=0), nn.MaxPool2d(2),
            *_block(width, width, padding=0), nn.MaxPool2d(2),
            *_block(width, width, padding=1),
            *_block(width, width, padding=1),
        )  # fmt: skip
        if features == "linear":
            self.blocks.pop(-1)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.blocks(images))

    @staticmethod
    def map_side(image_side: int) -> int:
        """Side of the feature map for a square image; 0 or less if the image is too small."""
        return ((image_side - 2) // 2 - 2) // 2


def _block(inputs: int, outputs: int, padding: int) -> tuple[nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
    return nn.Conv2d(inputs, outputs, 3, padding=padding), nn.BatchNorm2d(outputs), nn.ReLU()
