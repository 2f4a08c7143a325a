"""Read images as tensors, from files, folders, Pillow images, arrays and tensors."""

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sosn.data.listing import image_files, skipped
from sosn.data.pixels import LARGEST, Fit, fit_pixels, read_pixels
from sosn.errors import DataError, SosnWarning, UsageError

Picture = str | os.PathLike[str] | Image.Image | np.ndarray[Any, Any] | Tensor
Pictures = Picture | Iterable[Picture]
CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency


def list_pictures(pictures: Pictures) -> list[Picture]:
    """List pictures: the image files of a folder, the entries of a list, the first axis of an array or tensor, or one picture.

    Refuses an array or tensor that could be a single image, and an empty folder or list.
    """
    if isinstance(pictures, str | os.PathLike):
        return _files(Path(pictures))
    if isinstance(pictures, Image.Image):
        return [pictures]
    if isinstance(pictures, Tensor) or (isinstance(pictures, np.ndarray) and pictures.dtype.kind not in "UO"):  # not paths
        _refuse_single(pictures)
    listed: list[Picture] = list(pictures)
    if not listed:
        raise UsageError("there are no images: pass at least one")
    return listed


@dataclass(frozen=True)
class Images:
    """Images that were read, uint8 (B, channels, size, size), and the errors of the others."""

    images: Tensor
    places: tuple[int, ...]  # positions of the images in the list of pictures
    errors: dict[int, DataError]  # by position

    def all(self) -> Tensor:
        """Return the images. Raises the first error if a picture could not be read."""
        for error in self.errors.values():
            raise error
        return self.images


def read_images(
    pictures: Sequence[Picture], size: int, channels: int, read: Callable[[Picture], Tensor] | None = None
) -> Images:
    """Read pictures in parallel. A picture that cannot be read becomes an entry of errors; the others are still read.

    read: reads one picture as (channels, size, size), read_image by default.
    """

    def attempt(picture: Picture) -> Tensor | DataError:
        try:
            return read(picture) if read else read_image(picture, size, channels)
        except DataError as error:
            return error

    if len(pictures) == 1:  # without threads
        results = [attempt(pictures[0])]
    else:
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(attempt, pictures))
    found = {place: result for place, result in enumerate(results) if isinstance(result, Tensor)}
    errors = {place: result for place, result in enumerate(results) if isinstance(result, DataError)}
    blank = torch.empty(0, channels, size, size, dtype=torch.uint8)
    return Images(torch.stack(list(found.values())) if found else blank, tuple(found), errors)


def read_image(
    picture: Picture,
    size: int,
    channels: int,
    crop: float = 1.0,
    max_pixels: int = LARGEST,
    way_out: str = "shrink it",
    fit: Fit = "squash",
) -> Tensor:
    """Read a picture as a uint8 image (channels, size, size): rotated by its EXIF tag, on a white background, resized.

    picture: a path, a Pillow image, an array (H×W, H×W×1, H×W×3 or H×W×4) or a tensor (H×W or C×H×W); arrays and tensors are
    uint8 (0–255) or floating point (0–1). crop: central share of each side to keep; with
    fit="centre", of the short side; fit="whole" keeps the shape, and only shrinks. Refuses files that cannot be read, and
    images of more than max_pixels; way_out is the advice in that message.
    """
    if isinstance(picture, str | os.PathLike):
        if Path(picture).is_dir():
            raise DataError(f"{str(picture)!r} is a folder: pass its image files")
        return torch.from_numpy(read_pixels(picture, size, channels, crop, max_pixels, way_out, fit))
    if isinstance(picture, Image.Image):
        opened = picture
    elif isinstance(picture, np.ndarray | Tensor):
        opened = Image.fromarray(_pixels(picture))
    else:
        raise UsageError(f"an image is a {type(picture).__name__}; pass a path, a Pillow image, an array or a tensor")
    try:
        return torch.from_numpy(fit_pixels(opened, size, channels, crop, fit))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow reads files lazily
        raise DataError(f"a Pillow image cannot be read ({error})") from error


def source_of(picture: Picture) -> str | None:
    """Return the path of a picture, or None if it has none."""
    if isinstance(picture, Image.Image):
        return str(getattr(picture, "filename", "")) or None
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else None


def _files(path: Path) -> list[Picture]:
    if not path.exists():
        raise DataError(f"{str(path)!r} does not exist")
    if path.is_file():
        return [path]
    files, others = image_files(path)
    if not files:
        raise DataError(f"folder {str(path)!r} has no image files")
    if others:
        warnings.warn(skipped(others, path), SosnWarning, stacklevel=4)
    return list(files)


def _refuse_single(pictures: np.ndarray[Any, Any] | Tensor) -> None:
    shape = tuple(pictures.shape)
    single = len(shape) == 3 and (isinstance(pictures, Tensor) or shape[-1] in CHANNELS)
    if len(shape) < 3 or single:
        raise UsageError(
            f"images of shape {shape} are not a batch of images: put a single image in a list, or pass n×H×W×C arrays, n×H×W "
            "grey arrays or n×C×H×W tensors"
        )


def _pixels(picture: np.ndarray[Any, Any] | Tensor) -> np.ndarray[Any, Any]:
    """Convert an array or tensor to an H×W or H×W×C uint8 array."""
    shape = tuple(picture.shape)
    axis = 0 if isinstance(picture, Tensor) else -1
    if len(shape) not in (2, 3) or 0 in shape or (len(shape) == 3 and shape[axis] not in CHANNELS):
        expected = "tensors are H×W or C×H×W" if isinstance(picture, Tensor) else "arrays are H×W or H×W×C"
        raise UsageError(f"an image has shape {shape}; {expected}, with 1, 3 or 4 channels")
    values = picture.detach().cpu() if isinstance(picture, Tensor) else torch.from_numpy(np.array(picture, order="C"))
    if values.is_floating_point():
        lowest, highest = float(values.min()), float(values.max())
        if not (lowest >= 0 and highest <= 1):
            raise UsageError(
                f"a floating-point image ranges from {lowest:g} to {highest:g}; it must lie between 0 and 1: divide by "
                "255, or pass uint8"
            )
        values = (values * 255).round().to(torch.uint8)
    if values.dtype != torch.uint8:
        raise UsageError(f"an image has type {values.dtype}; it must be uint8 (0–255) or floating point (0–1)")
    if len(shape) == 3 and axis == 0:
        values = values.permute(1, 2, 0)
    array: np.ndarray[Any, Any] = values.contiguous().numpy()
    return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
