"""Any PyTorch module as an encoder."""

from typing import Any

from torch import Tensor, nn

from sosn.encoder.base import Encoder, probe
from sosn.errors import UsageError


class WrappedEncoder(Encoder):
    """Wrap a module that maps images (B, C, H, W) to feature maps (B, K, h, w). Refuses a module with another output."""

    def __init__(self, module: nn.Module, channels: int, image_side: int) -> None:
        super().__init__()
        self.module = module
        maps = probe(module, channels, image_side)
        if not isinstance(maps, Tensor) or maps.ndim != 4:
            shape = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
            raise UsageError(f"the encoder returns {shape} for one image; it must return feature maps (1, K, h, w)")
        self.width = maps.shape[1]

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.module(images)
        return maps

    def positions(self, image_side: int) -> int:
        maps: Tensor = probe(self, self.arguments.get("channels", 3), image_side)
        return maps.shape[-2] * maps.shape[-1]

    def table(self) -> dict[str, Any]:
        raise UsageError(
            f"the encoder is a {type(self.module).__name__} object, which cannot be saved: make it a subclass of sosn.Encoder "
            "with a name, and register it with sosn.register_encoder"
        )
