"""A process that decodes image files into rows of a file; sosn.data.decoding starts several."""

import os
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sosn.pixels import read_pixels

WAY_OUT = "shrink it, or raise --max-pixels"  # of an image with too many pixels


class How(NamedTuple):
    """The file of rows, and what its images are like."""

    file: Path
    size: int
    channels: int
    max_pixels: int


Batch = tuple[int, Sequence[tuple[str, float]]]  # the row of the first image, and files, each with the share that is kept


def serve() -> None:
    """Decode the batches that come in, and answer each with None or an error, until no more come."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed goes elsewhere
    with suppress(EOFError, BrokenPipeError):  # the process that asked is no more
        how: How = pickle.load(sys.stdin.buffer)
        images = np.load(how.file, mmap_mode="r+")
        error: Exception | None = None
        while True:
            pickle.dump(error, answers)
            answers.flush()
            first, files = pickle.load(sys.stdin.buffer)
            try:
                for row, (file, crop) in enumerate(files, first):
                    images[row] = read_pixels(file, how.size, how.channels, crop, how.max_pixels, WAY_OUT)
                error = None
            except Exception as problem:
                error = problem
