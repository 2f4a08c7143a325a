"""The one way a picture becomes a tensor: files, folders, Pillow images, arrays and tensors, as people have them."""

import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sosn.data.listing import image_files, skipped
from sosn.data.pixels import LARGEST, fit_pixels, read_pixels
from sosn.errors import DataError, SosnWarning, UsageError

Picture = str | os.PathLike[str] | Image.Image | np.ndarray[Any, Any] | Tensor
Pictures = Picture | Iterable[Picture]
CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency


def list_pictures(pictures: Pictures) -> list[Picture]:
    """One picture for each entry: of a folder its image files, of an array or tensor its first axis, of one picture itself.

    Refuses an array or tensor that could be a single image, and what holds no picture at all.
    """
    if isinstance(pictures, str | os.PathLike):
        return _files(Path(pictures))
    if isinstance(pictures, Image.Image):
        return [pictures]
    if isinstance(pictures, Tensor) or (isinstance(pictures, np.ndarray) and pictures.dtype.kind not in "UO"):  # not paths
        _refuse_single(pictures)
    listed: list[Picture] = list(pictures)
    if not listed:
        raise UsageError("there are no images: give at least one")
    return listed


@dataclass(frozen=True)
class Images:
    """Pictures that were read as uint8 images (B, channels, size, size), and why others were not."""

    images: Tensor
    places: tuple[int, ...]  # of the images, among all pictures
    errors: dict[int, DataError]  # by place

    def all(self) -> Tensor:
        """The images, if every picture could be read. Raises the first error otherwise."""
        for error in self.errors.values():
            raise error
        return self.images


def read_images(pictures: Sequence[Picture], size: int, channels: int) -> Images:
    """Read pictures in parallel. One that cannot be read becomes an error of its own and does not stop the others."""

    def attempt(picture: Picture) -> Tensor | DataError:
        try:
            return read_image(picture, size, channels)
        except DataError as error:
            return error

    if len(pictures) == 1:  # no threads for one
        results = [attempt(pictures[0])]
    else:
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(attempt, pictures))
    found = {place: one for place, one in enumerate(results) if isinstance(one, Tensor)}
    errors = {place: one for place, one in enumerate(results) if isinstance(one, DataError)}
    blank = torch.empty(0, channels, size, size, dtype=torch.uint8)
    return Images(torch.stack(list(found.values())) if found else blank, tuple(found), errors)


def read_image(
    picture: Picture,
    size: int,
    channels: int,
    crop: float = 1.0,
    max_pixels: int = LARGEST,
    way_out: str = "shrink it",
) -> Tensor:
    """One picture as a uint8 image (channels, size, size): oriented, on white where transparent, resized.

    A path, a Pillow image, an array (H×W, H×W×1, H×W×3 or H×W×4) or a tensor (H×W or C×H×W); the last two uint8 (0–255) or
    floating point (0–1). crop: the central share of either side that is kept. way_out: what to do about an image of more than
    max_pixels, for the message.
    """
    if isinstance(picture, str | os.PathLike):
        if Path(picture).is_dir():
            raise DataError(f"{str(picture)!r} is a folder: give its images")
        return torch.from_numpy(read_pixels(picture, size, channels, crop, max_pixels, way_out))
    if isinstance(picture, Image.Image):
        opened = picture
    elif isinstance(picture, np.ndarray | Tensor):
        opened = Image.fromarray(_pixels(picture))
    else:
        raise UsageError(f"an image is a {type(picture).__name__}; give a path, a Pillow image, an array or a tensor")
    try:
        return torch.from_numpy(fit_pixels(opened, size, channels, crop))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow reads a file as late as it can
        raise DataError(f"a Pillow image cannot be used ({error})") from error


def source_of(picture: Picture) -> str | None:
    """The path of a picture that is a file."""
    if isinstance(picture, Image.Image):
        return str(getattr(picture, "filename", "")) or None
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else None


def _files(path: Path) -> list[Picture]:
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}")
    if path.is_file():
        return [path]
    files, others = image_files(path)
    if not files:
        raise DataError(f"folder {str(path)!r} has no image files in it")
    if others:
        warnings.warn(skipped(others, path), SosnWarning, stacklevel=4)
    return list(files)


def _refuse_single(pictures: np.ndarray[Any, Any] | Tensor) -> None:
    shape = tuple(pictures.shape)
    single = len(shape) == 3 and (isinstance(pictures, Tensor) or shape[-1] in CHANNELS)
    if len(shape) < 3 or single:
        raise UsageError(
            f"images of shape {shape} are not a stack of images: put a single image in a list, or give n×H×W×C arrays, n×H×W "
            "grey arrays or n×C×H×W tensors"
        )


def _pixels(picture: np.ndarray[Any, Any] | Tensor) -> np.ndarray[Any, Any]:
    """H×W or H×W×C uint8, from an array or a tensor."""
    shape = tuple(picture.shape)
    axis = 0 if isinstance(picture, Tensor) else -1
    if len(shape) not in (2, 3) or 0 in shape or (len(shape) == 3 and shape[axis] not in CHANNELS):
        kinds = "tensors are H×W or C×H×W" if isinstance(picture, Tensor) else "arrays are H×W or H×W×C"
        raise UsageError(f"an image has shape {shape}; {kinds}, with 1, 3 or 4 channels")
    values = picture.detach().cpu() if isinstance(picture, Tensor) else torch.from_numpy(np.array(picture, order="C"))
    if values.is_floating_point():
        lowest, highest = float(values.min()), float(values.max())
        if not (lowest >= 0 and highest <= 1):
            raise UsageError(
                f"an image of floating-point numbers runs from {lowest:g} to {highest:g}; they lie between 0 and 1: divide by "
                "255, or give uint8"
            )
        values = (values * 255).round().to(torch.uint8)
    if values.dtype != torch.uint8:
        raise UsageError(f"an image holds {values.dtype}; it is uint8 (0–255) or floating point (0–1)")
    if len(shape) == 3 and axis == 0:
        values = values.permute(1, 2, 0)
    array: np.ndarray[Any, Any] = values.contiguous().numpy()
    return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
