"""A batch of few-shot tasks, the input of every method."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sosn.errors import UsageError

BRIGHTEST = 16.0  # above any pixel of an image in 0…1, also after standardisation


@dataclass(frozen=True)
class Episode:
    """A batch of E few-shot tasks: classify Q query images into L classes, given Z support images of each class.

    support: E×L×Z×C×H×W images; query: E×Q×C×H×W images; labels: E×Q integers in 0…L−1, or None at prediction time.
    classes: E×L integers, the numbers of the tasks' classes in the dataset, or None if they are not needed.
    Images are uint8 (0–255) or floating point (0–1). Raises UsageError if shapes, types or values do not fit.
    """

    support: Tensor
    query: Tensor
    labels: Tensor | None = None
    classes: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("support", "query", "labels"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and not (name == "labels" and value is None):
                raise UsageError(f"{name} is {type(value).__name__}, not a tensor: convert it with torch.as_tensor")
        if self.support.ndim != 6 or self.query.ndim != 5:
            raise UsageError(
                "an episode takes support images E×L×Z×C×H×W and query images E×Q×C×H×W, not "
                f"{_shape(self.support)} and {_shape(self.query)}: add the missing axes, with length 1"
            )
        if len(self.support) != len(self.query):
            raise UsageError(f"support has {len(self.support)} episodes and query {len(self.query)}: they must match")
        if self.support.shape[-3] != self.query.shape[-3]:
            raise UsageError(f"support images have {self.support.shape[-3]} channels, query images {self.query.shape[-3]}")
        if self.support.numel() == 0 or self.query.numel() == 0:
            raise UsageError(f"an episode cannot be empty: support {_shape(self.support)}, query {_shape(self.query)}")
        for name, images in (("support", self.support), ("query", self.query)):
            if images.dtype != torch.uint8 and not images.is_floating_point():
                raise UsageError(f"{name} images are {images.dtype}; they must be uint8 (0–255) or floating point (0–1)")
            if (
                images.dtype != torch.uint8 and images.device.type == "cpu" and type(images) is Tensor
            ):  # on a GPU the check would wait for the device
                highest = float(images.detach().abs().max())
                if not highest < BRIGHTEST:
                    raise UsageError(
                        f"{name} images reach {highest:g}; floating-point images must lie between 0 and 1: divide by 255, "
                        "or pass uint8"
                    )
        if self.labels is not None and (self.labels.is_floating_point() or self.labels.dtype == torch.bool):
            raise UsageError(f"labels are {self.labels.dtype}; they must be whole numbers, the classes of the queries")
        if self.labels is not None and self.labels.shape != self.query.shape[:2]:
            raise UsageError(f"labels are {_shape(self.labels)}; {_shape(self.query)} queries need E×Q labels")
        if self.labels is not None and self.labels.device.type == "cpu":  # on a GPU the check would wait for the device
            lowest, highest = int(self.labels.min()), int(self.labels.max())
            if lowest < 0 or highest >= self.way:
                raise UsageError(f"labels run from {lowest} to {highest}; {self.way} classes are numbered 0 to {self.way - 1}")

        if self.classes is not None and self.classes.shape != self.support.shape[:2]:
            raise UsageError(
                f"classes are {_shape(self.classes)}; {_shape(self.support)} support images need E×L class numbers"
            )

    def __len__(self) -> int:
        return len(self.support)

    @property
    def way(self) -> int:
        return self.support.shape[1]

    @property
    def shot(self) -> int:
        return self.support.shape[2]

    @property
    def queries(self) -> int:
        return self.query.shape[1]

    def one(self, index: int) -> "Episode":
        """Return one episode of the batch, as a batch of one."""
        part = slice(index, index + 1)
        labels, classes = (None if tensor is None else tensor[part] for tensor in (self.labels, self.classes))
        return Episode(self.support[part], self.query[part], labels, classes)

    def to(self, device: torch.device | str) -> "Episode":
        labels, classes = (None if tensor is None else tensor.to(device) for tensor in (self.labels, self.classes))
        return Episode(self.support.to(device), self.query.to(device), labels, classes)


def check_episode(given: Any, what: str) -> None:
    """Raise UsageError if the argument is not an Episode."""
    if not isinstance(given, Episode):
        raise UsageError(f"{what} takes an Episode, not {type(given).__name__}: build one with sosn.Episode(support, query)")


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
