"""The images of a split in one uint8 tensor, in memory, on disk or on a GPU."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from sosn.errors import DataError
from sosn.util.spelling import nearest

SPLITS = ("train", "val", "test")
PART = 4096  # images read at a time, so that a bank on disk need not fit in memory


@dataclass(frozen=True)
class Bank:
    """Images and their classes, sorted by class.

    images: (M, C, H, W) uint8. labels: (M,) class numbers. names: one name per class. groups: (M,) numbers, or None; images of
    one group, such as crops of one photo, are never split between support and query. drawers: (M,) numbers, or None; the
    person who drew each image. Refuses wrong shapes and types, duplicate names, and classes without images.
    """

    images: Tensor
    labels: Tensor
    names: tuple[str, ...]
    groups: Tensor | None = None
    drawers: Tensor | None = None
    counts: Tensor = field(init=False)  # (classes,) number of images
    starts: Tensor = field(init=False)  # (classes,) first row

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise DataError(f"a bank takes M×C×H×W uint8 images, not {self.images.dtype} {tuple(self.images.shape)}")
        if len(set(self.names)) != len(self.names):
            raise DataError("two classes have the same name: use unique names")
        notes = {name: note for name in ("groups", "drawers") if (note := getattr(self, name)) is not None}
        if any(values.shape != (len(self.images),) for values in (self.labels, *notes.values())):
            raise DataError("a bank needs one label for each image, and one group and one drawer if it has any")
        if self.labels.is_floating_point() or self.labels.dtype == torch.bool:
            raise DataError(f"labels are {self.labels.dtype}; they must be whole numbers, the classes of the images")
        labels = self.labels.to(self.images.device, torch.int64)
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.names):
            raise DataError(f"labels must lie between 0 and {len(self.names) - 1}, for {len(self.names)} classes")
        if (labels[1:] < labels[:-1]).any():
            order = labels.argsort(stable=True)
            labels = labels[order]
            object.__setattr__(self, "images", self.images[order])
            for name, note in notes.items():
                object.__setattr__(self, name, note.to(order.device)[order])
        counts = torch.bincount(labels, minlength=len(self.names))
        if (counts == 0).any():
            empty = self.names[int((counts == 0).nonzero()[0])]
            raise DataError(f"class {empty!r} has no images: add some or drop the class")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "starts", counts.cumsum(0) - counts)

    @classmethod
    def from_classes(cls, classes: dict[str, Tensor]) -> "Bank":
        """Build a bank from the images (m, C, H, W) of each class, by name. Refuses images of different shapes."""
        if len({tuple(images.shape[1:]) for images in classes.values()}) != 1:
            raise DataError("a bank needs at least one class, and images of one shape")
        labels = torch.repeat_interleave(torch.arange(len(classes)), torch.tensor([len(c) for c in classes.values()]))
        return cls(torch.cat(list(classes.values())), labels, tuple(classes))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def size(self) -> int:
        return self.images.shape[-1]

    def to(self, device: torch.device | str) -> "Bank":
        groups, drawers = (None if note is None else note.to(device) for note in (self.groups, self.drawers))
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), groups=groups, drawers=drawers)

    def class_images(self, name: str) -> Tensor:
        """Return the images of a class, (m, C, H, W). Refuses an unknown name."""
        self._known(name)
        index = self.names.index(name)
        start = int(self.starts[index])
        return self.images[start : start + int(self.counts[index])]

    def with_at_least(self, images: int) -> "Bank":
        """Return the bank without the classes that have fewer images."""
        keep = self.counts >= images
        return self._select(keep)

    def subset(self, names: Sequence[str]) -> "Bank":
        """Return the bank with only these classes. Refuses unknown names."""
        wanted = set(names)
        for name in names:
            self._known(name)
        return self._select(torch.tensor([name in wanted for name in self.names], device=self.device))

    def _known(self, name: str) -> None:
        if name not in self.names:
            raise DataError(f"there is no class {name!r} among {len(self.names)} classes{nearest(name, self.names)}")

    def _select(self, keep: Tensor) -> "Bank":
        if keep.all():
            return self
        rows = keep[self.labels]
        renumbered = keep.cumsum(0) - 1
        names = tuple(name for name, kept in zip(self.names, keep.tolist(), strict=True) if kept)
        groups, drawers = (None if note is None else note[rows] for note in (self.groups, self.drawers))
        return Bank(self.images[rows], renumbered[self.labels[rows]], names, groups, drawers)

    def with_rotations(self) -> "Bank":
        """Return the bank with four times as many classes: rotations by 90, 180 and 270 degrees are new classes."""
        return self._with({f"@{90 * turns}": self.images.rot90(turns, (-2, -1)) for turns in range(1, 4)})

    def _with(self, changed: dict[str, Tensor]) -> "Bank":
        """Return the bank with new classes of changed images, by the suffix of their names. Drawers stay the same."""
        count = 1 + len(changed)
        labels = torch.cat([self.labels + number * len(self.names) for number in range(count)])
        names = tuple(name + suffix for suffix in ("", *changed) for name in self.names)
        groups = None
        if self.groups is not None:
            groups = torch.cat([self.groups + number * (int(self.groups.max()) + 1) for number in range(count)])
        drawers = None if self.drawers is None else self.drawers.repeat(count)
        return Bank(torch.cat((self.images, *changed.values())), labels, names, groups, drawers)

    def mean_std(self) -> tuple[list[float], list[float]]:
        """Return the mean and standard deviation of each channel, in 0…1."""
        counts = torch.zeros(self.channels, 256, dtype=torch.int64, device=self.device)
        for part in self.images.split(PART):
            for histogram, channel in zip(counts, part.unbind(1), strict=True):
                histogram += torch.bincount(channel.flatten(), minlength=256)
        moments = counts.double()
        values = torch.arange(256, device=self.device).double() / 255
        means = [float((m * values).sum() / m.sum()) for m in moments]
        spreads = [
            float(((m * (values - mean).square()).sum() / m.sum()).sqrt()) for m, mean in zip(moments, means, strict=True)
        ]
        return means, [max(spread, 1e-3) for spread in spreads]

    def mean_image(self) -> Tensor:
        """Return the mean of all images, (C, H, W) float64 in 0…1."""
        total = torch.zeros(self.images.shape[1:], dtype=torch.int64, device=self.device)
        for part in self.images.split(PART):
            total += part.sum(0, dtype=torch.int64)
        return total.double() / (255 * len(self.images))

    @cached_property
    def fingerprint(self) -> str:
        """Short digest of class names, counts, pixels and groups, equal for banks with the same content."""
        digest = hashlib.blake2b("\0".join(self.names).encode(), digest_size=8)
        digest.update(repr(tuple(self.images.shape)).encode())
        for tensor in (self.counts, self.images, *(() if self.groups is None else (self.groups,))):
            digest.update(tensor.cpu().contiguous().numpy())
        return digest.hexdigest()
