"""The four-block encoder that pools after every block, that of Matching Nets, Prototypical Nets and MAML."""

from torch import Tensor, nn

from sosn.kernel.blocks import block, run


class Conv4Pooled(nn.Module):
    """Four blocks of 3×3 convolution (padding 1), batch norm, 2×2 max-pooling and ReLU.

    Images (B, C, H, W) → feature maps (B, width, h, w): 28² → 1², 84² → 5².
    """

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.width = width
        layers: list[nn.Module] = []
        for inputs in (channels, width, width, width):
            layers += block(inputs, width, padding=1, pool=True)
        self.blocks = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return run(self.blocks, images)

    @staticmethod
    def map_side(image_side: int) -> int:
        """Side of the feature map for a square image; 0 if the image is too small."""
        return image_side // 16
