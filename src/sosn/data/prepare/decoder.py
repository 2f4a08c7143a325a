"""Code of the processes that decode images. It does not import PyTorch, so that they start fast and stay small."""

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

WAY_OUT = "shrink it, or raise --max-pixels"  # advice for an image with too many pixels
_how: "How"
_images: "np.ndarray[Any, np.dtype[np.uint8]]"


class How(NamedTuple):
    """The file to decode into, and the format of its images."""

    file: str
    size: int
    channels: int
    max_pixels: int


def start(how: How) -> None:
    """Start a process: open the file, ignore interrupts, and exit when the parent process ends."""
    global _how, _images
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _how, _images = how, np.load(how.file, mmap_mode="r+")
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: wait([parent.sentinel]) and os._exit(1), daemon=True).start()


def decode_files(first: int, files: Sequence[tuple[str, float]]) -> None:
    """Decode files, each cropped to its central share, into the rows from `first`."""
    try:
        for row, (file, crop) in enumerate(files, first):
            _images[row] = read_pixels(file, _how.size, _how.channels, crop, _how.max_pixels, WAY_OUT)
    except SosnError:
        raise
    except Exception as error:  # send any error of a decoder to the parent as text
        raise SosnError(f"{type(error).__name__}: {error}") from None
