"""Files with one image per row of an array: pickles, npz and HDF5."""

import functools
import io
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from sosn.data.image import read_image
from sosn.data.prepare.pickles import read_pickle
from sosn.errors import DataError, SosnError

HDF5 = {".hd5", ".h5", ".hdf5"}
_lock = threading.Lock()


def table(path: str | Path) -> dict[str, Any]:
    """Return the columns of an array file by name; a list becomes the column data. The last two files stay open."""
    with _lock:  # so that a file is read once, not once per thread
        return _open(Path(path))


@functools.lru_cache(maxsize=2)
def _open(path: Path) -> dict[str, Any]:
    if path.suffix.lower() in HDF5:
        return _hdf5(path)
    if path.suffix.lower() == ".npz":
        return _npz(path)
    content = read_pickle(path)
    return content if isinstance(content, dict) else {"data": content}


def _npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as content:
            return dict(content)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{str(path)!r} cannot be read as npz arrays ({error})") from error


def _hdf5(path: Path) -> dict[str, Any]:
    try:
        import h5py
    except ImportError:
        raise SosnError(f"reading {path.name!r} needs h5py: pip install 'sosn[hdf5]'") from None
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read as HDF5 ({error})") from error
    return {name: file[name] for name in file}


def forget() -> None:
    """Close the open files and free their content."""
    _open.cache_clear()


def column(path: str | Path, *names: str) -> Any:
    """Return the first of these columns that the file has. Refuses a file without any of them."""
    columns = table(path)
    for name in names:
        if name in columns:
            return columns[name]
    raise DataError(f"{str(path)!r} has the columns {', '.join(map(str, columns))}; it needs {' or '.join(names)}")


def images(path: str | Path) -> Sequence[Any]:
    """Return the rows of an array file: N×H×W[×3] or, for CIFAR, N×3072 pixels, or N encoded image files."""
    rows: Sequence[Any] = column(path, "image_data", "data", "images")
    return rows


def read_row(path: str, row: int, size: int, channels: int, crop: float = 1.0) -> Tensor:
    """Read a row of an array file as (channels, size, size) uint8. Refuses a row that is not an image."""
    rows = images(path)
    try:
        if getattr(rows, "ndim", 1) == 1:  # a list of encoded files
            image: Image.Image = Image.open(io.BytesIO(bytes(rows[row])))
        else:
            pixels = np.asarray(rows[row])
            if pixels.ndim == 1:
                pixels = pixels.reshape(3, 32, 32).transpose(1, 2, 0)
            if str(path).endswith("_images.npz"):  # tieredImageNet stores blue first
                pixels = pixels[..., ::-1]
            if pixels.dtype != np.uint8:
                raise DataError(f"{str(path)!r} has {pixels.dtype} pixels; they must be uint8")
            image = Image.fromarray(pixels)
        return read_image(image, size, channels, crop)
    except (OSError, TypeError, ValueError, SyntaxError) as error:
        raise DataError(f"row {row} of {str(path)!r} is not an image ({error})") from error
