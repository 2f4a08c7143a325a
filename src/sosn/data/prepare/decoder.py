"""What a process that decodes images runs. Nothing here imports PyTorch, so such processes start at once and stay small."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np

from sosn.data.pixels import read_pixels
from sosn.errors import SosnError

WAY_OUT = "shrink it, or raise --max-pixels"  # of an image with too many pixels
_how: "How"
_images: "np.ndarray[Any, np.dtype[np.uint8]]"


class How(NamedTuple):
    """The file of rows that images are decoded into, and what its images are like."""

    file: str
    size: int
    channels: int
    max_pixels: int


def start(how: How) -> None:
    """Open the file of rows, leave interrupts to the process that asked, and end when that one is no more."""
    global _how, _images
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _how, _images = how, np.load(how.file, mmap_mode="r+")
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: wait([parent.sentinel]) and os._exit(1), daemon=True).start()


def decode_files(first: int, files: Sequence[tuple[str, float]]) -> None:
    """Decode files, each with the central share that is kept, into the rows from the first on."""
    try:
        for row, (file, crop) in enumerate(files, first):
            _images[row] = read_pixels(file, _how.size, _how.channels, crop, _how.max_pixels, WAY_OUT)
    except SosnError:
        raise
    except Exception as error:  # whatever a decoder raises must reach the other process as text
        raise SosnError(f"{type(error).__name__}: {error}") from None
