"""timm backbones as encoders."""

import math
from typing import Any, ClassVar

from torch import Tensor

from sosn.encoder.base import Encoder, probe
from sosn.errors import CheckpointError, UsageError


class TimmEncoder(Encoder):
    """A timm backbone without its classifier: the last feature map, or the patch tokens of a transformer as a square map.

    The weights are random; checkpoint.timm.open_timm loads those of timm or of a file.
    """

    name: ClassVar[str] = "timm"
    pooled: ClassVar[bool] = True

    def __init__(self, channels: int = 3, model: str = "resnet18") -> None:
        super().__init__()
        self.backbone = create_timm(model, pretrained=False, channels=channels)
        self.width = int(self.backbone.num_features)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.backbone.forward_features(images)
        if maps.ndim == 3:  # tokens (B, N, K), of which the first are not patches
            maps = maps[:, getattr(self.backbone, "num_prefix_tokens", 0) :].mT
            side = math.isqrt(maps.shape[-1])
            maps = maps.unflatten(-1, (side, side) if side**2 == maps.shape[-1] else (-1, 1))
        return maps if maps.shape[1] == self.width else maps.movedim(-1, 1)

    def positions(self, image_side: int) -> int:
        maps: Tensor = probe(self, self.arguments.get("channels", 3), image_side)
        return maps.shape[-2] * maps.shape[-1]


def create_timm(model: str, pretrained: bool, channels: int = 3) -> Any:
    """Create a timm network without its classifier. pretrained: download timm's weights. Refuses an unknown model."""
    try:
        import timm
    except ImportError:
        raise UsageError("a timm encoder needs timm: pip install 'sosn[timm]'") from None
    if not timm.is_model(model):
        raise UsageError(f"timm has no model {model!r}: timm.list_models() lists all models")
    try:
        return timm.create_model(model, pretrained=pretrained, num_classes=0, in_chans=channels)
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise CheckpointError(f"timm could not download the weights of {model!r} ({error}): pass a checkpoint file") from error
