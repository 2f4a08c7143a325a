"""Drawings or photos? Which of the models in the package fits somebody's images."""

from collections.abc import Collection
from typing import Literal

from torch import Tensor

Kind = Literal["drawings", "photos"]
THUMBNAIL = 64  # side of the images that are looked at
COLOUR = 0.1  # mean difference of the strongest and the weakest channel above which an image is coloured
EXTREME = 0.2  # how near to white or black paper and ink are
PAPER = 0.6  # share of such pixels above which a colourless image is a drawing
FITTING: dict[Kind, tuple[str, ...]] = {  # best first
    "drawings": ("omniglot", "omniglot-5shot", "glyphs"), "photos": ("mini-imagenet", "mini-imagenet-5shot")
}  # fmt: skip


def kind_of(images: Tensor) -> Kind:
    """Whether most of these uint8 images (B, 3, h, w) are line drawings.

    A drawing has next to no colour, and most of it is nearly white or nearly black: paper and ink. A grey photo has tones in
    between; a photo of a thing on a white ground has colour. A grey photo on a white ground is taken for a drawing.
    """
    values = images.float() / 255
    colour = (values.amax(1) - values.amin(1)).mean((1, 2))  # (B,)
    grey = values.mean(1)
    extreme = ((grey < EXTREME) | (grey > 1 - EXTREME)).float().mean((1, 2))
    drawn = (colour < COLOUR) & (extreme > PAPER)
    return "drawings" if drawn.float().mean() > 0.5 else "photos"


def choose_model(kind: Kind, shipped: Collection[str]) -> tuple[str, str | None]:
    """The model of the package for images of a kind, and, where none was trained on that kind, a sentence that says so."""
    for name in FITTING[kind]:
        if name in shipped:
            return name, None
    name = next((one for fitting in FITTING.values() for one in fitting if one in shipped), min(shipped))
    return name, (
        f"the images look like {kind}, and no model in the package was trained on {kind}: {name!r} is used, and its answers "
        "may be little better than guesses; give a model that was trained on such images"
    )
