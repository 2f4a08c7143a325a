"""Drawings or photos? Which of the models in the package fits somebody's images."""

import warnings
from collections.abc import Collection, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from sosn.checkpoint.registry import shipped_models
from sosn.data.image import Picture, read_pictures
from sosn.errors import SosnWarning

Kind = Literal["drawings", "photos"]
LOOKED_AT = 32  # pictures, at most, that decide whether a set is of drawings or of photos
THUMBNAIL = 64  # side of the images that are looked at
COLOUR = 0.1  # mean difference of the strongest and the weakest channel above which an image is coloured
EXTREME = 0.2  # how near to white or black paper and ink are
PAPER = 0.6  # share of pixels of one of the two above which a colourless image is a drawing
TINGED = 0.2  # difference of a pixel's channels above which it is coloured
BROAD = 7  # pixels, wider than a stroke: the side of squares that are coloured throughout
SOLID = 0.005  # share of such squares above which an image shows a coloured thing
FITTING: dict[Kind, tuple[str, ...]] = {  # best first
    "drawings": ("omniglot", "omniglot-5shot", "glyphs"), "photos": ("mini-imagenet", "mini-imagenet-5shot")
}  # fmt: skip
MANY = 5  # images of each class from which on a model that was trained with as many may be the better one
FITTING_MANY = FITTING | {"photos": ("mini-imagenet-5shot", "mini-imagenet")}


def kind_of(images: Tensor) -> Kind:
    """Whether most of these uint8 images (B, 3, h, w) are line drawings.

    A drawing has next to no colour, but for strokes, and most of it is nearly white, or else nearly black: paper. A grey photo
    has tones in between; a photo of a thing on a white ground has colour, in patches broader than strokes. A grey photo on a
    white or black ground is taken for a drawing.
    """
    values = images.float() / 255
    colour = values.amax(1) - values.amin(1)  # (B, h, w)
    coloured = (colour > TINGED).float().unsqueeze(1)
    solid = -F.max_pool2d(-coloured, min(BROAD, *coloured.shape[-2:]), stride=1)
    grey = values.mean(1)
    paper = [share.float().mean((1, 2)) > PAPER for share in (grey < EXTREME, grey > 1 - EXTREME)]
    drawn = (colour.mean((1, 2)) < COLOUR) & (solid.mean((1, 2, 3)) < SOLID) & (paper[0] | paper[1])
    return "drawings" if drawn.float().mean() > 0.5 else "photos"


def choose_model(kind: Kind, shipped: Collection[str], shots: int = 1) -> tuple[str, str | None]:
    """The model of the package for images of a kind, and, where none was trained on that kind, a sentence that says so.

    shots: images that every class has, or more.
    """
    for name in FITTING_MANY[kind] if shots >= MANY else FITTING[kind]:
        if name in shipped:
            return name, None
    name = next((one for fitting in FITTING.values() for one in fitting if one in shipped), min(shipped))
    return name, (
        f"the images look like {kind}, and no model in the package was trained on {kind}: {name!r} is used, and its answers "
        "may be little better than guesses; give a model that was trained on such images"
    )


def kind_of_pictures(pictures: Sequence[Picture]) -> Kind:
    """Whether pictures are drawings or photos, by a few from all over the list."""
    step = -(-len(pictures) // LOOKED_AT)
    return kind_of(read_pictures(pictures[::step], THUMBNAIL, 3))


def fitting_model(kind: Kind, shots: int = 1) -> str:
    """The shipped model for images of a kind, so many of each class; says so where none was trained on such images."""
    name, note = choose_model(kind, shipped_models(), shots)
    if note:
        warnings.warn(note, SosnWarning, stacklevel=4)
    return name
