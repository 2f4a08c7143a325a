"""A process that decodes image files into rows of a file; sosn.data.decoding starts several."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TextIO

import numpy as np

from sosn.data.pixels import read_pixels

WAY_OUT = "shrink it, or raise --max-pixels"  # of an image with too many pixels


class How(NamedTuple):
    """The file of rows, and what its images are like."""

    file: str
    size: int
    channels: int
    max_pixels: int


Batch = tuple[int, Sequence[tuple[str, float]]]  # the row of the first image, and files, each with the share that is kept


def serve() -> None:
    """Decode the batches that come in, a line of JSON each, and answer with the kind and text of an error, or null."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever is printed goes elsewhere
    with suppress(BrokenPipeError):  # the process that asked is no more
        how = How(*json.loads(sys.stdin.buffer.readline()))
        images = np.load(how.file, mmap_mode="r+")
        _answer(answers, None)
        for line in sys.stdin.buffer:
            first, files = json.loads(line)
            _answer(answers, _decode(images, first, files, how))


def _decode(
    images: "np.ndarray[Any, np.dtype[np.uint8]]", first: int, files: Sequence[tuple[str, float]], how: How
) -> tuple[str, str] | None:
    """Decode files into rows from the first on; the kind and text of the error that ended it, if one did."""
    try:
        for row, (file, crop) in enumerate(files, first):
            images[row] = read_pixels(file, how.size, how.channels, crop, how.max_pixels, WAY_OUT)
    except Exception as problem:
        return type(problem).__name__, str(problem)
    return None


def _answer(answers: TextIO, answer: tuple[str, str] | None) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
