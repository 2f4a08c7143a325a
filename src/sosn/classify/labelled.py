"""Images with their labels, as fit and score take them."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np

from sosn.classify.support import Label
from sosn.data.image import Picture, Pictures, list_pictures, read_images, source_of
from sosn.data.listing import list_classes
from sosn.errors import DataError, SosnWarning, UsageError

Labels = Sequence[Any] | np.ndarray[Any, Any]
Errors = Literal["raise", "skip"]  # what to do about an image that cannot be read
NAMED = 10  # files named in a message


def labelled(images: Pictures, labels: Labels | None) -> tuple[list[Picture], list[Label]]:
    """Return images with a label each. Refuses missing labels, a wrong number of them, and other types than str or int."""
    if labels is None:
        if not isinstance(images, str | os.PathLike):
            raise UsageError("labels are missing: give one for each image, a folder with one subfolder per class, or a CSV")
        files, names = list_classes(images)
        return list(files), list(names)
    pictures, array = list_pictures(images), np.asarray(labels)
    if array.dtype == object and all(isinstance(label, str) for label in array.flat):
        array = array.astype(str)
    if array.ndim != 1 or len(array) != len(pictures):
        raise UsageError(f"there are {len(pictures)} images and labels of shape {array.shape}: give one label for each image")
    if array.dtype.kind not in "iubU":
        raise UsageError(f"labels are {array.dtype}; they must be strings or integers")
    return pictures, cast(list[Label], array.tolist())


def learn_readable(
    learn: Callable[[list[Picture], list[Label]], None], pictures: list[Picture], names: list[Label], errors: Errors
) -> None:
    """Call learn with images and labels; with errors="skip", without the images that cannot be read, and warn of them.

    Refuses a class of which no image can be read.
    """
    check_errors(errors)
    try:
        learn(pictures, names)
    except DataError:
        bad = {} if errors == "raise" else read_images(pictures, 1, 1).errors  # again, but only now
        if not bad:
            raise
        kept = [place for place in range(len(pictures)) if place not in bad]
        for place, error in bad.items():
            if names[place] not in {names[one] for one in kept}:
                raise DataError(f"class {names[place]!r} has no image that can be read: {error}") from error
        learn([pictures[place] for place in kept], [names[place] for place in kept])
        warn_unreadable([pictures[place] for place in bad], len(pictures))


def check_errors(errors: str) -> None:
    """Refuse another word than raise or skip."""
    if errors not in ("raise", "skip"):
        raise UsageError(f"errors is {errors!r}; choose 'raise' or 'skip'")


def warn_unreadable(pictures: Sequence[Picture], total: int) -> None:
    """Warn of images that were skipped, if any: how many, and which."""
    if pictures:
        names = [source_of(picture) or type(picture).__name__ for picture in pictures]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        message = f"skipped {len(names)} of {total} images, which cannot be read: {', '.join(names[:NAMED])}{more}"
        warnings.warn(message, SosnWarning, stacklevel=4)
