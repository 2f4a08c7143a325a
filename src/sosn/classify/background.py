"""Invert light-on-dark drawings for models trained on dark-on-light ones, and the reverse."""

from typing import Literal

import torch
from torch import Tensor

from sosn.classify.image_type import COLOUR
from sosn.encoder.preprocessing import Preprocessing
from sosn.util.checks import one_of

Background = Literal["light", "dark"]
Inverting = Literal["auto", "as_is"]
PAPER = 0.7  # training images brighter than this on average are drawings on a light background; below 1 − PAPER, on a dark one
MOST = 0.6  # least share of background in a drawing, and along its border
DARK = 0.5  # a background is dark if its median is below this
CONTRAST = 0.2  # least difference between the darkest and the lightest pixel of a drawing
BORDER = 14  # the border is 1/14 of the side wide


def background_for(preprocessing: Preprocessing, polarity: Inverting = "auto") -> Background | None:
    """Return the background that a model expects, from the mean of its training images.

    Returns None if images are not inverted: the model was trained on photos, its mean is not known, or polarity is "as_is".
    """
    one_of(("auto", "as_is"), polarity=polarity)
    brightness = preprocessing.brightness
    if polarity == "as_is" or brightness is None or 1 - PAPER <= brightness <= PAPER:
        return None
    return "light" if brightness > PAPER else "dark"


def inverted(images: Tensor, background: Background | None) -> tuple[Tensor, int]:
    """Invert drawings that do not have this background. Returns uint8 images (B, c, h, w) and the number of inverted ones.

    The background of an inverted drawing becomes pure white or black: models are not trained on grey ones, such as
    blackboards.
    """
    if background is None or not len(images):
        return images, 0
    strokes_light = images if background == "light" else 255 - images
    other = _on_dark(strokes_light)
    ink = _ink(strokes_light)
    return torch.where(other.view(-1, 1, 1, 1), 255 - ink if background == "light" else ink, images), int(other.sum())


def _ink(images: Tensor) -> Tensor:
    """Return how much lighter than the background, their median, images (B, c, h, w) are: 0 is background, 255 is white."""
    values = images.float()
    background = values.flatten(2).median(-1).values[..., None, None]
    return (255 * (values - background).clamp_min(0) / (255 - background).clamp_min(1)).round().to(torch.uint8)


def _on_dark(images: Tensor) -> Tensor:
    """Return which images (B, c, h, w) are drawings on a dark background: (B,).

    They have almost no colour and are mostly dark, also along their border. A pixel is dark if it is in the darker half of the
    range of its image, so that grey blackboards count. The median must also be below middle grey, so that shaded paper with
    glare does not count.
    """
    values = images.float() / 255
    grey = values.mean(1)
    darkest, lightest = grey.amin((1, 2), keepdim=True), grey.amax((1, 2), keepdim=True)
    dark = (2 * (grey - darkest) < lightest - darkest).float()  # False in a blank image
    inner = torch.zeros(grey.shape[-2:], dtype=torch.bool)
    width = max(1, grey.shape[-1] // BORDER)
    inner[width:-width, width:-width] = True
    colourless = (values.amax(1) - values.amin(1)).mean((1, 2)) < COLOUR
    drawn = (grey.flatten(1).median(1).values < DARK) & ((lightest - darkest).flatten() > CONTRAST)
    return drawn & colourless & (dark.mean((1, 2)) > MOST) & (dark[:, ~inner].mean(1) > MOST)
