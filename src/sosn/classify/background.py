"""Dark strokes on a light background, or light on dark: drawings are shown to a model the way round that it knows."""

from typing import Literal

import torch
from torch import Tensor

from sosn.classify.image_type import COLOUR
from sosn.encoder.preprocessing import Preprocessing
from sosn.util.checks import one_of

Background = Literal["light", "dark"]
Inverting = Literal["auto", "as_is"]
PAPER = 0.7  # mean brightness of training images above which they are drawings on a light background; below 1 − this, on a dark
MOST = 0.6  # share of a drawing, and of its border, that is background
DARK = 0.5  # a background is dark if its median is below
CONTRAST = 0.2  # from the darkest to the lightest, at least, of what is a drawing at all
BORDER = 14  # the border is as wide as this part of the side


def background_for(preprocessing: Preprocessing, polarity: Inverting = "auto") -> Background | None:
    """The background that drawings should have for a model, by the mean of the images that it was trained on.

    None where pictures are left as they are: the model knows photos, or its mean is not known, or polarity is as_is.
    """
    one_of(("auto", "as_is"), polarity=polarity)
    brightness = preprocessing.brightness
    if polarity == "as_is" or brightness is None or 1 - PAPER <= brightness <= PAPER:
        return None
    return "light" if brightness > PAPER else "dark"


def inverted(images: Tensor, background: Background | None) -> tuple[Tensor, int]:
    """uint8 images (B, c, h, w) with drawings on the other background inverted, and how many those are.

    The background of an inverted one is made pure white, or black: a grey one, as blackboards have, is strange to the models.
    """
    if background is None or not len(images):
        return images, 0
    strokes_light = images if background == "light" else 255 - images
    other = _on_dark(strokes_light)
    ink = _ink(strokes_light)
    return torch.where(other.view(-1, 1, 1, 1), 255 - ink if background == "light" else ink, images), int(other.sum())


def _ink(images: Tensor) -> Tensor:
    """What is lighter than the background of images (B, c, h, w), their median: 0 there and 255 where they are white."""
    values = images.float()
    background = values.flatten(2).median(-1).values[..., None, None]
    return (255 * (values - background).clamp_min(0) / (255 - background).clamp_min(1)).round().to(torch.uint8)


def _on_dark(images: Tensor) -> Tensor:
    """Which images (B, c, h, w) have next to no colour and are dark on the whole and along their border: (B,).

    Dark is what lies in the darker half of an image's own tones, so that a grey blackboard is dark; but the background, the
    median, has to be below the middle grey as well, so that shaded paper with a glare is not.
    """
    values = images.float() / 255
    grey = values.mean(1)
    darkest, lightest = grey.amin((1, 2), keepdim=True), grey.amax((1, 2), keepdim=True)
    dark = (2 * (grey - darkest) < lightest - darkest).float()  # none of a blank image
    inner = torch.zeros(grey.shape[-2:], dtype=torch.bool)
    width = max(1, grey.shape[-1] // BORDER)
    inner[width:-width, width:-width] = True
    colourless = (values.amax(1) - values.amin(1)).mean((1, 2)) < COLOUR
    drawn = (grey.flatten(1).median(1).values < DARK) & ((lightest - darkest).flatten() > CONTRAST)
    return drawn & colourless & (dark.mean((1, 2)) > MOST) & (dark[:, ~inner].mean(1) > MOST)
