"""What an encoder is."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sosn.util.recorded import Recorded


class Encoder(Recorded, nn.Module, ABC):
    """Maps images (B, C, H, W) to feature maps (B, width, h, w).

    A subclass has a name, sets width, and writes forward. Its constructor takes channels, those of the images, and has a
    default for everything else; `sosn.register_encoder` makes it known by its name.
    """

    name: ClassVar[str] = ""
    width: int
    non_negative: bool = False  # whether features are never below 0, as after a ReLU
    pooled: ClassVar[bool] = False  # whether the mean over positions is the usual description of an image

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Feature maps (B, width, h, w) of preprocessed images (B, C, H, W)."""

    @property
    def chain(self) -> nn.Sequential | None:
        """Its blocks, if it is nothing but a chain of them, which methods that adapt an encoder to each task need."""
        return None

    def map_side(self, image_side: int) -> int:
        """Side of the feature map of a square image; 0 or less if the image is too small."""
        return int(probe(self, self.arguments.get("channels", 3), image_side).shape[-1])

    def positions(self, image_side: int) -> int:
        """Number of positions of the feature map of a square image."""
        return self.map_side(image_side) ** 2

    def table(self) -> dict[str, Any]:
        """The name and options that build it again, as plain values."""
        return {"name": self.name} | {name: value for name, value in self.arguments.items() if name != "channels"}


@torch.no_grad()
def probe(module: nn.Module, channels: int, side: int) -> Any:
    """What a module gives for one black image, in evaluation mode and its own precision; its parts keep their modes."""
    weight = next(module.parameters(), torch.zeros(()))
    modes = {part: part.training for part in module.modules()}
    try:
        return module.eval()(torch.zeros(1, channels, side, side, dtype=weight.dtype, device=weight.device))
    finally:
        for part, training in modes.items():
            part.training = training
