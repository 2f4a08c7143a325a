"""Random changes to the images of an episode, a whole batch in one go, on the images' own device."""

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
    """How training images are changed at random, each in its own way; by default not at all."""

    rotate: Literal["none", "episode", "image"] = "none"  # right angles: one an episode (the paper's authors) or one an image
    flip: bool = False  # swap left and right in half of the images
    translate: float = 0.0  # largest translation, as a share of the side
    zoom: float = 0.0  # largest relative change of scale; with translate it is the random crop
    turn: float = 0.0  # largest rotation, in degrees
    shear: float = 0.0  # largest slant, in degrees
    jitter: float = 0.0  # largest relative change of brightness, contrast and, in colour images, saturation

    def __post_init__(self) -> None:
        if self.rotate not in ("none", "episode", "image"):
            raise UsageError(f"rotate is {self.rotate!r}; choose none, episode or image")
        for name, highest in _HIGHEST.items():
            if not 0 <= getattr(self, name) <= highest:
                raise UsageError(f"{name} is {getattr(self, name)}; it must lie between 0 and {highest}")


@torch.no_grad()
def augment(episode: Episode, wanted: AugmentationSection, generator: torch.Generator) -> Episode:
    """The episode with its images changed at random, shapes and labels as they were; with everything off, the same object.

    Right angles and flips move pixels and keep the dtype; anything else makes the images float32 in 0–1. The generator lives
    on the images' device, and nothing is read back from there. Refuses right angles for images that are not square.
    """
    check_generator(generator)
    check_episode(episode, "augment")
    if wanted == AugmentationSection():
        return episode
    for images in (episode.support, episode.query):
        height, width = images.shape[-2:]
        if wanted.rotate != "none" and height != width:
            raise UsageError(
                f"rotate is {wanted.rotate!r} and images are {height}×{width}; right angles need square ones: set rotate=none"
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
    """All but right angles, for images (N, C, H, W)."""
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
    """Numbers between low and high, one an image: (N, 1, 1, 1) float32."""
    drawn = torch.rand(count, 1, 1, 1, generator=generator, device=generator.device, dtype=torch.float32)
    return low + (high - low) * drawn


def _quarters(count: int, generator: torch.Generator) -> Tensor:
    """Numbers of right angles, 0 to 3: (count,)."""
    return torch.randint(4, (count,), generator=generator, device=generator.device)


def _rotated(images: Tensor, quarters: Tensor) -> Tensor:
    """Square images (N, C, S, S), each turned by its number of right angles (N,)."""
    size = images.shape[-1]
    places = torch.arange(size * size, device=images.device).view(size, size)
    sources = torch.stack([places.rot90(count).flatten() for count in range(4)])  # (4, S·S) where each pixel comes from
    index = sources[quarters].unsqueeze(1).expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).view(images.shape)


def _moved(images: Tensor, wanted: AugmentationSection, generator: torch.Generator) -> Tensor:
    """Images seen through a window that is turned, slanted, scaled and shifted; outside, the border is repeated."""
    count, _, height, width = images.shape
    right, down, scale, angle, slant = (_uniform(-1, 1, count, generator).flatten() for _ in range(5))
    angle = math.radians(wanted.turn) * angle
    slant = (math.radians(wanted.shear) * slant).tan()
    scale = 1 + wanted.zoom * scale
    cos, sin = angle.cos() / scale, angle.sin() / scale
    aspect = height / width  # the grid runs from −1 to 1 along either side, the angles are those of pixels
    rows = (
        torch.stack((cos, (cos * slant - sin) * aspect, 2 * wanted.translate * right), -1),
        torch.stack((sin / aspect, sin * slant + cos, 2 * wanted.translate * down), -1),
    )
    moved = seen_through(images, torch.stack(rows, 1))
    return moved.clamp_(0, 1)  # weights of the interpolation may sum to a little more than 1


def _jittered(images: Tensor, jitter: float, generator: torch.Generator) -> Tensor:
    """Images darker or brighter, then drawn to or from their mean grey, then, in colour, to or from the grey of each pixel."""
    brightness, contrast, saturation = (_uniform(1 - jitter, 1 + jitter, len(images), generator) for _ in range(3))
    mean = _grey(images.mean((-2, -1), keepdim=True))
    changed, own = brightness * (1 - contrast) * mean, brightness * contrast  # all three together: changed + own·images
    if images.shape[1] == 3:
        changed, own = torch.addcmul(changed, own * (1 - saturation), _grey(images)), own * saturation
    return torch.addcmul(changed, own, images).clamp_(0, 1)


def _grey(images: Tensor) -> Tensor:
    """(N, C, H, W) → (N, 1, H, W): luma where there are three channels."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, 1)
    return torch.add(0.299 * red, green, alpha=0.587).add_(blue, alpha=0.114)
