"""ResNet-12, the residual encoder of the few-shot literature, followed by a 1×1 convolution that reduces its width."""

from typing import ClassVar, Literal

from torch import Tensor, nn

from sosn.encoder.base import Encoder
from sosn.encoder.drop_block import DropBlock
from sosn.errors import UsageError
from sosn.kernel.blocks import run, run_residual
from sosn.util.checks import at_least, one_of

SLOPE = 0.1  # of the leaky ReLU
STAGES = 4
DROPPED = 2  # number of last stages that DropBlock follows


class ResNet12(Encoder):
    """Four residual stages and a 1×1 convolution: TADAM's (Oreshkin et al., NeurIPS 2018), as wide as MetaOptNet's.

    A stage has three 3×3 convolutions with batch norm and leaky ReLU 0.1, a 1×1 convolution with batch norm as shortcut, and
    2×2 max-pooling. The stages have 1, 2½, 5 and 10 times first_width filters. Only the first `pools` stages pool (theirs: all
    four), so that second-order matrices get enough positions: 84² → 21², 10² or 5² with 2, 3 or 4. A 1×1 convolution, batch
    norm and ReLU then reduce the features to width; width=0 omits them. drop: the share of positions that DropBlock drops after
    each of the last two stages. features="linear" omits the last ReLU.
    """

    name: ClassVar[str] = "resnet12"
    pooled: ClassVar[bool] = True

    def __init__(
        self,
        channels: int = 3,
        width: int = 64,
        features: Literal["relu", "linear"] = "relu",
        first_width: int = 64,
        pools: int = 3,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        if pools not in (2, 3, 4):
            raise UsageError(f"pools is {pools}; it must be 2, 3 or 4")
        at_least(0, width=width)
        at_least(1, first_width=first_width)
        one_of(("relu", "linear"), features=features)
        if not 0 <= drop < 1:
            raise UsageError(f"drop is {drop}; it must be 0 or more and below 1")
        if width == 0 and features == "linear":
            raise UsageError("features is 'linear' and width is 0: the stages end in a leaky ReLU, so set width above 0")
        widths = [channels, *(first_width * share // 2 for share in (2, 5, 10, 20))]
        self.pools, self.width = pools, width or widths[-1]
        self.stages = nn.Sequential()
        for number in range(STAGES):
            share = drop if number >= STAGES - DROPPED else 0.0
            self.stages.append(Stage(widths[number], widths[number + 1], number < pools, share))
        self.reduce = nn.Sequential()
        if width:
            self.reduce.extend([nn.Conv2d(widths[-1], width, 1, bias=False), nn.BatchNorm2d(width)])
            if features == "relu":
                self.reduce.append(nn.ReLU())
        self.non_negative = bool(width) and features == "relu"

    def forward(self, images: Tensor) -> Tensor:
        return run(self.reduce, self.stages(images))

    def map_side(self, image_side: int) -> int:
        """Side of the feature map for a square image; 0 if the image is too small."""
        return image_side >> self.pools  # each pooling rounds down


class Stage(nn.Module):
    """Three convolutions with a shortcut: maps (B, inputs, h, w) → (B, outputs, h, w), or half that size if pooled."""

    def __init__(self, inputs: int, outputs: int, pool: bool, drop: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_convolution(inputs, outputs, 3), nn.LeakyReLU(SLOPE),
            *_convolution(outputs, outputs, 3), nn.LeakyReLU(SLOPE),
            *_convolution(outputs, outputs, 3),
        )  # fmt: skip
        self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1))
        self.pool = pool
        self.drop = DropBlock(drop) if drop else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        dropped: Tensor = self.drop(run_residual(self.layers, self.shortcut, maps, SLOPE, self.pool))
        return dropped


def _convolution(inputs: int, outputs: int, side: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, side, padding=side // 2, bias=False), nn.BatchNorm2d(outputs)]
