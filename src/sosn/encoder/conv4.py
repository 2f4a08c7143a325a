"""The four-block encoder of Relation Net and SoSN (Fig. 2)."""

from typing import ClassVar, Literal

from torch import Tensor, nn

from sosn.encoder.base import Encoder
from sosn.errors import UsageError
from sosn.kernel.blocks import block, run
from sosn.util.checks import at_least, one_of


class Conv4(Encoder):
    """Four blocks of 3×3 convolution, batch norm and ReLU, with 2×2 max-pooling after the first two.

    Images (B, C, H, W) → feature maps (B, width, h, w): 28² → 5², 84² → 19², 224² → 54².
    features="linear" omits the last ReLU, so that features may be negative. pools=3 or 4 also pools after later blocks, for a
    larger receptive field: 84² → 9² or 4². blocks=5 or more adds blocks without pooling.
    """

    name: ClassVar[str] = "conv4"

    def __init__(
        self,
        channels: int = 3,
        width: int = 64,
        features: Literal["relu", "linear"] = "relu",
        pools: int = 2,
        blocks: int = 4,
    ) -> None:
        super().__init__()
        at_least(1, width=width)
        one_of(("relu", "linear"), features=features)
        if pools not in (2, 3, 4):
            raise UsageError(f"pools is {pools}; it must be 2, 3 or 4")
        if blocks < 4:
            raise UsageError(f"blocks is {blocks}; it must be 4 or more")
        self.width, self.pools = width, pools
        self.blocks = nn.Sequential(
            *block(channels, width, padding=0, pool=True),
            *block(width, width, padding=0, pool=True),
            *block(width, width, padding=1, pool=pools > 2),
            *block(width, width, padding=1, pool=pools > 3),
            *(layer for _ in range(blocks - 4) for layer in block(width, width, padding=1, pool=False)),
        )
        if features == "linear":
            self.blocks.pop(-1)
        self.non_negative = features == "relu"

    def forward(self, images: Tensor) -> Tensor:
        return run(self.blocks, images)

    @property
    def chain(self) -> nn.Sequential:
        return self.blocks

    def map_side(self, image_side: int) -> int:
        """Side of the feature map for a square image; 0 or less if the image is too small."""
        return ((image_side - 2) // 2 - 2) // 2 >> (self.pools - 2)
