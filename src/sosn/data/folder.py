"""Anybody's own images: a folder of classes, each a folder of image files, or a list of files."""

import csv
import hashlib
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from sosn.data.bank import Bank
from sosn.errors import DataError, MissingSplitError, SosnWarning, UsageError
from sosn.pixels import LARGEST, fit_pixels, read_pixels

SPLITS = ("train", "val", "test")


def folder(
    path: str,
    split: str = "train",
    size: int = 84,
    channels: int = 3,
    split_seed: int = 0,
    val_share: float = 0.2,
    test_share: float = 0.2,
    max_pixels: int = LARGEST,
) -> Bank:
    """Images of a folder of folders, one for each class, or of a CSV file with the columns path, label[, group][, split].

    Splits are the folders path/train, path/val and path/test or the column split; without them classes are split with a seed.
    Images are resized, antialiased, to size×size. A missing folder, an empty class, an unreadable file, a class in two
    splits and an image of more than max_pixels are refused.
    """
    if size < 1 or channels not in (1, 3):
        raise UsageError(f"size is {size} and channels {channels}; a size of 1 or more and 1 (grey) or 3 (colour) are needed")
    if not (val_share >= 0 and test_share >= 0 and val_share + test_share < 1):
        raise UsageError(f"val_share={val_share} and test_share={test_share}; both are 0 or more and leave some for train")
    if split not in SPLITS:
        raise UsageError(f"split is {split!r}; choose train, val or test")
    root = Path(path)
    pictures = from_list(root) if root.suffix.lower() == ".csv" else _from_folders(root)
    homes = _splits(pictures, path)
    named = [name for name in SPLITS if name in homes.values()]
    if not named:
        homes = _split_classes(sorted(homes), split_seed, val_share, test_share)
    chosen = [picture for picture in pictures if homes[picture.label] == split]
    if not chosen and named:
        raise MissingSplitError(f"{path!r} has {', '.join(named)} and no {split!r}: add its images")
    if not chosen:
        raise MissingSplitError(f"{len(homes)} classes leave none for {split!r}: add classes or change {split}_share")
    return _bank(chosen, size, channels, max_pixels)


@dataclass(frozen=True)
class LabelledFile:
    """An image file, and what is said of it."""

    file: Path
    label: str
    split: str = ""
    group: str = ""


def _from_folders(root: Path) -> list[LabelledFile]:
    named = [name for name in SPLITS if (root / name).is_dir()]
    pictures: list[LabelledFile] = []
    others: list[Path] = []
    for split in named or [""]:
        classes, left_out = class_files(root / split)
        pictures += [LabelledFile(file, label, split) for label, files in classes.items() for file in files]
        others += left_out
    warn_left_out(root, others)
    return pictures


def class_files(root: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """The images of each class in a folder of folders, and the files there that are no images by name or of no class.

    Refuses a folder that has no folders in it, and a class without images.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {str(root)!r}: give one that holds a folder of images for each class")
    found: dict[str, list[Path]] = {}
    others = _visible(root, Path.is_file)
    for entry in _visible(root, Path.is_dir):
        images, left_out = image_files(entry)
        if not images:
            below = _visible(entry, Path.is_dir)
            where = f"; there is a folder {below[0].name!r} in it: give the folder whose folders hold images" if below else ""
            raise DataError(f"class {entry.name!r} has no images in {str(entry)!r}: add some or remove the folder{where}")
        found[entry.name] = images
        others += left_out
    if not found:
        raise DataError(f"folder {str(root)!r} has no folders in it: it needs one for each class")
    return found, others


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of a folder, sorted: those with names of images, and the others."""
    files = _visible(folder, Path.is_file)
    known = Image.registered_extensions()
    others = [file for file in files if file.suffix.lower() not in known]
    return [file for file in files if file.suffix.lower() in known], others


def warn_left_out(root: Path, others: list[Path]) -> None:
    """Say how many files of a folder are not looked at, if any."""
    if others:
        warnings.warn(
            f"{len(others)} file{'s' * (len(others) > 1)} in {str(root)!r} left out, such as "
            f"{str(others[0].relative_to(root))!r}: not an image by its name, or in no folder of a class",
            SosnWarning,
            stacklevel=4,
        )


def _visible(root: Path, kind: Callable[[Path], bool]) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if kind(entry) and not entry.name.startswith("."))


def from_list(path: Path) -> list[LabelledFile]:
    """The images that a CSV names, with their labels and, if it has them, groups and splits."""
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}: give a CSV with the columns path, label[, group][, split]")
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if not {"path", "label"} <= set(rows.fieldnames or ()):
            raise DataError(f"{str(path)!r} has the columns {rows.fieldnames}; path and label are needed")
        pictures = []
        for number, row in enumerate(rows, 2):
            if not row["path"] or not row["label"]:
                raise DataError(
                    f"line {number} of {str(path)!r} has path {row['path']!r} and label {row['label']!r}: give both"
                )
            if (row.get("split") or "train") not in SPLITS:
                raise DataError(f"line {number} of {str(path)!r} has split {row['split']!r}; splits are train, val and test")
            said = (row["label"], row.get("split") or "", row.get("group") or "")
            pictures.append(LabelledFile(path.parent / row["path"], *said))
    return pictures


def _splits(pictures: list[LabelledFile], path: str) -> dict[str, str]:
    """The split of each class. A class in two of them would be known before it is judged."""
    homes: dict[str, str] = {}
    for picture in pictures:
        if homes.setdefault(picture.label, picture.split) != picture.split:
            both = f"{homes[picture.label] or 'no split'} and in {picture.split or 'no split'}"
            raise DataError(f"class {picture.label!r} stands in {both} of {path!r}: keep it in one")
    return homes


def _split_classes(classes: list[str], seed: int, val_share: float, test_share: float) -> dict[str, str]:
    """Classes in the order of a digest of their names, so that a class more or less moves few of the others."""
    order = sorted(classes, key=lambda name: hashlib.blake2b(f"{seed}/{name}".encode()).digest())
    test, val = round(len(classes) * test_share), round(len(classes) * val_share)
    parts = ["test"] * test + ["val"] * val + ["train"] * max(0, len(classes) - test - val)
    return dict(zip(order, parts, strict=False))


def _bank(pictures: list[LabelledFile], size: int, channels: int, max_pixels: int) -> Bank:
    ordered = sorted(pictures, key=lambda picture: picture.label)
    with ThreadPoolExecutor() as pool:
        limit = (max_pixels, "shrink it, or raise max_pixels")
        images = list(pool.map(lambda picture: read_image(picture.file, size, channels, 1.0, *limit), ordered))
    numbers = {label: number for number, label in enumerate(dict.fromkeys(picture.label for picture in ordered))}
    groups = None
    if any(picture.group for picture in ordered):  # a picture without one is a group by itself
        keys = [(picture.label, picture.group or str(picture.file)) for picture in ordered]
        known = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        groups = torch.tensor([known[key] for key in keys])
    labels = torch.tensor([numbers[picture.label] for picture in ordered])
    return Bank(torch.stack(images), labels, tuple(numbers), groups)


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
