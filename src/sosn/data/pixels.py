"""Read image files as arrays. This module does not import PyTorch, so that decoding processes start fast and stay small."""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sosn.errors import DataError, SosnWarning

LARGEST = 50_000_000  # default limit of pixels per image
HEIF = (".heic", ".heif", ".hif")  # photos of phones; Pillow reads them with the package pillow-heif
NEWER = (*HEIF, ".avif", ".webp")  # images for everybody, but not for every Pillow
MISSING = 0.25  # share of rows, at most, that an incomplete image may lack
UNREAD = 128  # grey: what decoders leave where a file ends too early
JPEG_END = b"\xff\xd9"
Fit = Literal["squash", "centre", "whole"]  # to a square, squashed or cut out; or in its shape, with sides up to the size
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def read_pixels(
    file: str | os.PathLike[str],
    size: int,
    channels: int,
    crop: float = 1.0,
    max_pixels: int = LARGEST,
    way_out: str = "shrink it",
    fit: Fit = "squash",
) -> Pixels:
    """Read an image file, or the first frame of an animation, as (channels, size, size) uint8.

    Warns of a file without its last bytes. Refuses files that cannot be read or lack more than a quarter of the image, and
    images of more than max_pixels; way_out is the advice in that message.
    """
    with _reading(file):
        return fit_pixels(open_image(file, max_pixels, way_out), size, channels, crop, fit)


def open_image(file: str | os.PathLike[str], max_pixels: int = LARGEST, way_out: str = "shrink it") -> Image.Image:
    """Open and decode an image file. Warns and refuses as read_pixels does."""
    if max_pixels > LARGEST and (Image.MAX_IMAGE_PIXELS or max_pixels) < max_pixels:
        Image.MAX_IMAGE_PIXELS = max_pixels  # raise Pillow's limit too
    with _reading(file), Image.open(file) as opened:
        if opened.width * opened.height > max_pixels:
            raise DataError(
                f"image {str(file)!r} has {opened.width}×{opened.height} pixels; {max_pixels:,} is the limit: {way_out}"
            )
        try:
            opened.load()
        except OSError:
            if opened.format not in ("JPEG", "MPO", "PNG"):
                raise
            return _incomplete(Path(file))
        return opened


@contextmanager
def _reading(file: str | os.PathLike[str]) -> Iterator[None]:
    """Register what the file needs, and turn errors of Pillow into DataErrors that name the file and a way out."""
    suffix = Path(file).suffix.lower()
    if suffix in HEIF and not _reads_heif():
        raise DataError(f"image {str(file)!r} needs the package pillow-heif: pip install 'sosn[heif]', or convert it to JPEG")
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"image {str(file)!r} does not exist") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError) as error:
        newer = suffix in NEWER and isinstance(error, UnidentifiedImageError)
        advice = "replace it, or try pip install --upgrade pillow" if newer else "replace or remove it"
        raise DataError(f"image {str(file)!r} cannot be read ({error}): {advice}") from error


@cache
def _reads_heif() -> bool:
    """Let Pillow read HEIC and HEIF. Returns False if the package for it is missing."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _incomplete(file: Path) -> Image.Image:
    """Read a JPEG or PNG that ends too early, as browsers do: the rows that are missing are grey.

    Pillow's LOAD_TRUNCATED_IMAGES would do this for the whole process. Instead, JPEGs get an end, and what was decoded of a
    PNG before the error is kept.
    """
    content = file.read_bytes()
    image = Image.open(io.BytesIO(content + JPEG_END if content.startswith(b"\xff\xd8") else content))
    bands = len(image.getbands())
    blank = Image.new(image.mode, image.size, UNREAD if bands == 1 else (UNREAD,) * bands)
    image.im = blank.im.copy()
    try:
        image.load()
    except OSError:
        image.tile = []  # nothing is left to decode
    same = np.asarray(image).reshape(image.height, -1) == np.asarray(blank).reshape(image.height, -1)
    missing = float(np.logical_and.accumulate(same.all(1)[::-1]).mean())  # share of rows at the bottom
    if missing > MISSING:
        raise OSError(f"{100 * missing:.0f}% of it is missing")
    warnings.warn(f"image {str(file)!r} is incomplete: its file ends too early", SosnWarning, stacklevel=5)
    return image


def fit_pixels(opened: Image.Image, size: int, channels: int, crop: float = 1.0, fit: Fit = "squash") -> Pixels:
    """Convert an image to (channels, size, size) uint8: EXIF rotation, white background, central crop, resizing.

    crop: central share of each side to keep; with fit="centre", of the short side, so that the rest is a square.
    """
    image = upright(opened, channels)
    sides = (min(image.size),) * 2 if fit == "centre" else image.size
    if crop != 1 or sides != image.size:
        width, height = (max(1, round(crop * side)) for side in sides)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    share = min(1, size / max(image.size))
    width, height = (max(1, round(share * side)) for side in image.size) if fit == "whole" else (size, size)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)  # Pillow's filters antialias
    return np.array(image).reshape(height, width, channels).transpose(2, 0, 1)


def upright(opened: Image.Image, channels: int = 3) -> Image.Image:
    """Convert an image to 8-bit grey or colour, rotated by its EXIF tag, on a white background."""
    image = ImageOps.exif_transpose(_eight_bit(opened))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


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
