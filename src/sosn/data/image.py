"""Pictures as people have them: files, folders, Pillow images, arrays, tensors. Each becomes what its file would give."""

import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sosn.data.listing import image_files
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


def read_pictures(pictures: Sequence[Picture], size: int, channels: int) -> Tensor:
    """Pictures as uint8 images (B, channels, size, size), resized with antialiasing. Refuses what is no picture."""
    if len(pictures) == 1:  # no threads for one
        return read_picture(pictures[0], size, channels).unsqueeze(0)
    with ThreadPoolExecutor() as pool:
        return torch.stack(list(pool.map(lambda one: read_picture(one, size, channels), pictures)))


def read_picture(picture: Picture, size: int, channels: int) -> Tensor:
    """One picture as a uint8 image (channels, size, size).

    Arrays are H×W, H×W×1, H×W×3 or H×W×4, tensors H×W or C×H×W; both uint8 (0–255) or floating point (0–1).
    """
    if isinstance(picture, str | os.PathLike):
        if Path(picture).is_dir():
            raise DataError(f"{str(picture)!r} is a folder: give its images")
        return read_image(picture, size, channels)
    if isinstance(picture, Image.Image):
        opened = picture
    elif isinstance(picture, np.ndarray | Tensor):
        opened = Image.fromarray(_pixels(picture))
    else:
        raise UsageError(f"an image is a {type(picture).__name__}; give a path, a Pillow image, an array or a tensor")
    try:
        return fit_image(opened, size, channels)
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
        warnings.warn(f"{len(others)} files in {str(path)!r} are no images by name and left out", SosnWarning, stacklevel=4)
    return list(files)


def _refuse_single(pictures: np.ndarray[Any, Any] | Tensor) -> None:
    shape = tuple(pictures.shape)
    single = len(shape) == 3 and (isinstance(pictures, Tensor) or shape[-1] in CHANNELS)
    if len(shape) < 3 or single:
        raise UsageError(
            f"images of shape {shape} are no stack of images: put a single image in a list, or give n×H×W×C arrays, n×H×W grey "
            "arrays or n×C×H×W tensors"
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


def read_image(
    file: str | os.PathLike[str],
    size: int,
    channels: int,
    crop: float = 1.0,
    max_pixels: int = LARGEST,
    way_out: str = "shrink it",
) -> Tensor:
    """What read_pixels gives, as a tensor."""
    return torch.from_numpy(read_pixels(file, size, channels, crop, max_pixels, way_out))


def fit_image(opened: Image.Image, size: int, channels: int, crop: float = 1.0) -> Tensor:
    """What fit_pixels gives, as a tensor."""
    return torch.from_numpy(fit_pixels(opened, size, channels, crop))
