"""Images with their labels, as fit and score take them."""

import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from sosn.classify.support import Label
from sosn.data.image import Picture, Pictures, list_pictures
from sosn.data.listing import list_classes
from sosn.errors import UsageError

Labels = Sequence[Any] | np.ndarray[Any, Any]


def labelled(images: Pictures, labels: Labels | None) -> tuple[list[Picture], list[Label]]:
    """Return images with a label each. Refuses missing labels, a wrong number of them, and other types than str or int."""
    if labels is None:
        if not isinstance(images, str | os.PathLike):
            raise UsageError("labels are missing: give one for each image, or a folder with one subfolder per class")
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
