"""A method, an encoder, a power normalisation and a dataset of one's own. docs/extend.md explains them one by one.

python examples/extend.py    # trains the method for a few steps on the dataset, and evaluates it
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sosn
from sosn.method.encoded import SoftmaxMethod


@sosn.register_method
class StrongestResponse(SoftmaxMethod):
    """A class is the mean of its shots' strongest responses; the nearest by cosine wins."""

    name = "strongest_response"

    def __init__(self, scale: float = 10.0, **shared: Any) -> None:
        super().__init__(**shared)  # encoder, preprocessing, test_time, channels, input_size
        self.scale = scale

    def describe(self, shots: Tensor) -> Tensor:  # (…, Z, K, h, w) → (…, K)
        return F.normalize(shots.amax((-2, -1)).mean(-2), dim=-1)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:  # (E, L, K), (E, Q, K) → (E, Q, L)
        return self.scale * queries @ classes.mT


@sosn.register_encoder
class Wide(sosn.Encoder):
    """Two strided convolutions: images (B, C, H, W) → feature maps (B, width, H/4, W/4)."""

    name = "wide"
    non_negative = True  # it ends in a ReLU

    def __init__(self, channels: int = 3, width: int = 64, kernel: int = 5) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, kernel, stride=2, padding=kernel // 2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, kernel, stride=2, padding=kernel // 2), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps


def softsign(m: Tensor, eta: float) -> Tensor:
    """η′m / (1 + |η′m|): like SigmE, with heavier tails."""
    return eta * m / (1 + (eta * m).abs())


sosn.register_power_norm("softsign", softsign)


@sosn.register_dataset("stripes")
def stripes(split: str = "train", classes: int = 12, images: int = 20, size: int = 28) -> sosn.Bank:
    """Stripes of a direction and width for each class, with noise; each split has classes of its own."""
    offset = {"train": 0, "val": 1, "test": 2}[split]
    places = torch.arange(size, dtype=torch.float32)
    by_class = {}
    for number in range(classes):
        angle = torch.tensor(torch.pi * (3 * number + offset) / (3 * classes))
        wave = torch.sin((places[:, None] * angle.cos() + places * angle.sin()) * (0.4 + 0.05 * number))
        noise = torch.rand(images, 1, size, size, generator=sosn.generator("stripes", split, number))
        by_class[f"{split}/{number:02}"] = (127 * (wave + 1) * noise).to(torch.uint8)
    return sosn.Bank.from_classes(by_class)


if __name__ == "__main__":
    words = ["method=strongest_response", "data=stripes", "encoder=wide", "steps=50", "every=50"]
    result = sosn.train(sosn.override("glyphs-5w1s", words), "runs/extend")
    print(result.evaluation)
