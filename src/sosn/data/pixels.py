"""Read image files as arrays. This module does not import PyTorch, so that decoding processes start fast and stay small."""

import os
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sosn.errors import DataError

LARGEST = 50_000_000  # default limit of pixels per image
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def read_pixels(
    file: str | os.PathLike[str],
    size: int,
    channels: int,
    crop: float = 1.0,
    max_pixels: int = LARGEST,
    way_out: str = "shrink it",
    whole: bool = False,
) -> Pixels:
    """Read an image file, or the first frame of an animation, as (channels, size, size) uint8; whole: see fit_pixels.

    Refuses files that cannot be read, and images of more than max_pixels; way_out is the advice in that message.
    """
    if max_pixels > LARGEST and (Image.MAX_IMAGE_PIXELS or max_pixels) < max_pixels:
        Image.MAX_IMAGE_PIXELS = max_pixels  # raise Pillow's limit too
    try:
        with Image.open(file) as opened:
            if opened.width * opened.height > max_pixels:
                raise DataError(
                    f"image {str(file)!r} has {opened.width}×{opened.height} pixels; {max_pixels:,} is the limit: {way_out}"
                )
            return fit_pixels(opened, size, channels, crop, whole)
    except FileNotFoundError as error:
        raise DataError(f"image {str(file)!r} does not exist") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError) as error:
        raise DataError(f"image {str(file)!r} cannot be read ({error}): replace or remove it") from error


def fit_pixels(opened: Image.Image, size: int, channels: int, crop: float = 1.0, whole: bool = False) -> Pixels:
    """Convert an image to (channels, size, size) uint8: EXIF rotation, white background, central crop, resizing.

    whole: keep its shape, (channels, height, width), and shrink it only if a side is longer than size.
    """
    image = ImageOps.exif_transpose(_eight_bit(opened))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    if crop != 1:
        width, height = (round(crop * side) for side in image.size)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    share = min(1, size / max(image.size))
    width, height = (max(1, round(share * side)) for side in image.size) if whole else (size, size)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)  # Pillow's filters antialias
    return np.array(image).reshape(height, width, channels).transpose(2, 0, 1)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Scale 16- and 32-bit grey to 8 bits, which Pillow would clip at 255. Refuses floating point, which has no range."""
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range; save it with 8 or 16 bits")
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return image
    values = np.asarray(image, dtype=np.int64)
    shallow = Image.fromarray((values >> (24 if values.max(initial=0) > 65535 else 8)).clip(0, 255).astype(np.uint8))
    shallow.info["exif"] = image.info.get("exif", b"")
    return shallow
