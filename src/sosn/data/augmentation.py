"""Random augmentation of the images of an episode, in one batch, on their device."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sosn.episode import Episode, check_episode
from sosn.errors import UsageError
from sosn.util.seeding import check_generator
from sosn.util.warping import seen_through

_HIGHEST = {"translate": 1, "zoom": 0.9, "turn": 180, "shear": 80, "jitter": 1}


@dataclass(frozen=True)
class AugmentationSection:
    """Random augmentation of training images, drawn for each image; off by default."""

    rotate: Literal["none", "episode", "image"] = "none"  # by right angles, one per episode (as the authors) or per image
    flip: bool = False  # mirror half of the images
    translate: float = 0.0  # largest translation, as a share of the side
    zoom: float = 0.0  # largest relative change of scale; with translate, a random crop
    turn: float = 0.0  # largest rotation, in degrees
    shear: float = 0.0  # largest shear, in degrees
    jitter: float = 0.0  # largest relative change of brightness, contrast and, in colour images, saturation

    def __post_init__(self) -> None:
        if self.rotate not in ("none", "episode", "image"):
            raise UsageError(f"rotate is {self.rotate!r}; choose none, episode or image")
        for name, highest in _HIGHEST.items():
            if not 0 <= getattr(self, name) <= highest:
                raise UsageError(f"{name} is {getattr(self, name)}; it must lie between 0 and {highest}")


@torch.no_grad()
def augment(episode: Episode, wanted: AugmentationSection, generator: torch.Generator) -> Episode:
    """Return the episode with randomly augmented images of the same shape; if everything is off, the same object.

    Rotations by right angles and flips keep the dtype; other changes return float32 in 0–1. The generator must be on the
    device of the images. Refuses rotations by right angles of images that are not square.
    """
    check_generator(generator)
    check_episode(episode, "augment")
    if wanted == AugmentationSection():
        return episode
    for images in (episode.support, episode.query):
        height, width = images.shape[-2:]
        if wanted.rotate != "none" and height != width:
            raise UsageError(
                f"rotate is {wanted.rotate!r}, which needs square images, and images are {height}×{width}: set rotate=none"
            )
    of_episode = _quarters(len(episode), generator).unsqueeze(1) if wanted.rotate == "episode" else None  # (E, 1)
    sides = []
    for images in (episode.support, episode.query):
        batch = images.flatten(0, -4)  # (N, C, H, W), episode after episode
        if of_episode is not None:
            batch = _rotated(batch, of_episode.expand(-1, len(batch) // len(episode)).flatten())
        elif wanted.rotate == "image":
            batch = _rotated(batch, _quarters(len(batch), generator))
        sides.append(_changed(batch, wanted, generator).view(images.shape))
    return replace(episode, support=sides[0], query=sides[1])


def _changed(images: Tensor, wanted: AugmentationSection, generator: torch.Generator) -> Tensor:
    """Apply all augmentations but rotations by right angles to images (N, C, H, W)."""
    moves = wanted.translate or wanted.zoom or wanted.turn or wanted.shear
    if wanted.flip:
        images = torch.where(_uniform(0, 1, len(images), generator) < 0.5, images.flip(-1), images)
    if moves or wanted.jitter:
        images = images / 255 if images.dtype == torch.uint8 else images.float()
    if moves:
        images = _moved(images, wanted, generator)
    if wanted.jitter:
        images = _jittered(images, wanted.jitter, generator)
    return images


def _uniform(low: float, high: float, count: int, generator: torch.Generator) -> Tensor:
    """Draw uniform numbers between low and high, one per image: (N, 1, 1, 1) float32."""
    drawn = torch.rand(count, 1, 1, 1, generator=generator, device=generator.device, dtype=torch.float32)
    return low + (high - low) * drawn


def _quarters(count: int, generator: torch.Generator) -> Tensor:
    """Draw numbers of right angles, 0 to 3: (count,)."""
    return torch.randint(4, (count,), generator=generator, device=generator.device)


def _rotated(images: Tensor, quarters: Tensor) -> Tensor:
    """Rotate square images (N, C, S, S), each by its number of right angles (N,)."""
    size = images.shape[-1]
    places = torch.arange(size * size, device=images.device).view(size, size)
    sources = torch.stack([places.rot90(count).flatten() for count in range(4)])  # (4, S·S) source of each pixel
    index = sources[quarters].unsqueeze(1).expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).view(images.shape)


def _moved(images: Tensor, wanted: AugmentationSection, generator: torch.Generator) -> Tensor:
    """Rotate, shear, scale and translate images at random; outside an image, its border is repeated."""
    count, _, height, width = images.shape
    right, down, scale, angle, slant = (_uniform(-1, 1, count, generator).flatten() for _ in range(5))
    angle = math.radians(wanted.turn) * angle
    slant = (math.radians(wanted.shear) * slant).tan()
    scale = 1 + wanted.zoom * scale
    cos, sin = angle.cos() / scale, angle.sin() / scale
    aspect = height / width  # the grid runs from −1 to 1 along each axis, angles are in pixels
    rows = (
        torch.stack((cos, (cos * slant - sin) * aspect, 2 * wanted.translate * right), -1),
        torch.stack((sin / aspect, sin * slant + cos, 2 * wanted.translate * down), -1),
    )
    moved = seen_through(images, torch.stack(rows, 1))
    return moved.clamp_(0, 1)  # interpolation weights may sum to slightly more than 1


def _jittered(images: Tensor, jitter: float, generator: torch.Generator) -> Tensor:
    """Change brightness, then contrast about the mean grey, then, in colour images, saturation."""
    brightness, contrast, saturation = (_uniform(1 - jitter, 1 + jitter, len(images), generator) for _ in range(3))
    mean = _grey(images.mean((-2, -1), keepdim=True))
    offset, factor = brightness * (1 - contrast) * mean, brightness * contrast  # all three together: offset + factor·images
    if images.shape[1] == 3:
        offset, factor = torch.addcmul(offset, factor * (1 - saturation), _grey(images)), factor * saturation
    return torch.addcmul(offset, factor, images).clamp_(0, 1)


def _grey(images: Tensor) -> Tensor:
    """Convert to grey, by luma if there are three channels: (N, C, H, W) → (N, 1, H, W)."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, 1)
    return torch.add(0.299 * red, green, alpha=0.587).add_(blue, alpha=0.114)
