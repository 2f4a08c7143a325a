"""The base class of encoders."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sosn.errors import UsageError
from sosn.util.recorded import Recorded


class Encoder(Recorded, nn.Module, ABC):
    """Maps images (B, C, H, W) to feature maps (B, width, h, w).

    A subclass has a name, sets width and implements forward. Its constructor takes the number of image channels and has a
    default for every other argument. `sosn.register_encoder` registers it by its name.
    """

    name: ClassVar[str] = ""
    width: int
    non_negative: bool = False  # whether features are never negative, as after a ReLU
    has_seen: ClassVar[frozenset[str]] = frozenset()  # datasets whose classes its pretrained weights were trained on
    pooled: ClassVar[bool] = False  # whether an image is usually described by the mean over positions

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Map preprocessed images (B, C, H, W) to feature maps (B, width, h, w)."""

    @property
    def chain(self) -> nn.Sequential | None:
        """The blocks, if the encoder is a plain sequence of them, as methods that adapt to each task need; else None."""
        return None

    def map_side(self, image_side: int) -> int:
        """Side of the feature map of a square image; 0 or less if the image is too small."""
        return int(probe(self, self.arguments.get("channels", 3), image_side).shape[-1])

    def positions(self, image_side: int) -> int:
        """Number of positions of the feature map of a square image."""
        return self.map_side(image_side) ** 2

    def table(self) -> dict[str, Any]:
        """The name and options that rebuild it, as plain values."""
        return {"name": self.name} | {name: value for name, value in self.arguments.items() if name != "channels"}


@torch.no_grad()
def probe(module: nn.Module, channels: int, side: int) -> Any:
    """Run a module on one black image, in evaluation mode and the precision of its weights; then restore its modes."""
    weight = next(module.parameters(), torch.zeros(()))
    modes = {part: part.training for part in module.modules()}
    try:
        return module.eval()(torch.zeros(1, channels, side, side, dtype=weight.dtype, device=weight.device))
    except RuntimeError as error:
        name = type(module).__name__
        raise UsageError(f"encoder {name} cannot take images of {channels}×{side}×{side} ({error})") from error
    finally:
        for part, training in modes.items():
            part.training = training
