"""The four-block encoder of Matching Nets, Prototypical Nets and MAML, which pools after every block."""

from typing import ClassVar

from torch import Tensor, nn

from sosn.encoder.base import Encoder
from sosn.kernel.blocks import block, run
from sosn.util.checks import at_least


class Conv4Pooled(Encoder):
    """Four blocks of 3×3 convolution (padding 1), batch norm, 2×2 max-pooling and ReLU.

    Images (B, C, H, W) → feature maps (B, width, h, w): 28² → 1², 84² → 5².
    """

    name: ClassVar[str] = "conv4_pooled"
    non_negative = True

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        at_least(1, width=width)
        self.width = width
        layers: list[nn.Module] = []
        for inputs in (channels, width, width, width):
            layers += block(inputs, width, padding=1, pool=True)
        self.blocks = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return run(self.blocks, images)

    @property
    def chain(self) -> nn.Sequential:
        return self.blocks

    def map_side(self, image_side: int) -> int:
        """Side of the feature map for a square image; 0 if the image is too small."""
        return image_side // 16
