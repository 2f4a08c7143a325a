"""Your own images: a folder with one folder per class, or a CSV list."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from sosn.data.bank import SPLITS, Bank
from sosn.data.image import read_image
from sosn.data.listing import LabelledFile, class_files, from_list, warn_skipped
from sosn.data.pixels import LARGEST
from sosn.errors import DataError, MissingSplitError, UsageError


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
    """Images in a folder with one folder per class, or in a CSV file with the columns path, label[, group][, split].

    Splits are the folders path/train, path/val and path/test or the column split; without them, classes are split at random
    with split_seed. Images are resized to size×size with antialiasing. Refuses a missing folder, a class without images or in
    two splits, a file that cannot be read, and an image of more than max_pixels.
    """
    if size < 1 or channels not in (1, 3):
        raise UsageError(f"size is {size} and channels {channels}; size must be 1 or more, channels 1 (grey) or 3 (colour)")
    if not (val_share >= 0 and test_share >= 0 and val_share + test_share < 1):
        raise UsageError(f"val_share={val_share} and test_share={test_share}; both must be 0 or more and leave some for train")
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


def _from_folders(root: Path) -> list[LabelledFile]:
    named = [name for name in SPLITS if (root / name).is_dir()]
    pictures: list[LabelledFile] = []
    others: list[Path] = []
    for split in named or [""]:
        classes, skipped_files = class_files(root / split)
        pictures += [LabelledFile(file, label, split) for label, files in classes.items() for file in files]
        others += skipped_files
    warn_skipped(root, others)
    return pictures


def _splits(pictures: list[LabelledFile], path: str) -> dict[str, str]:
    """Return the split of each class. Refuses a class in two splits, which would be tested on what it was trained on."""
    homes: dict[str, str] = {}
    for picture in pictures:
        if homes.setdefault(picture.label, picture.split) != picture.split:
            both = f"{homes[picture.label] or 'no split'} and in {picture.split or 'no split'}"
            raise DataError(f"class {picture.label!r} is in {both} of {path!r}: keep it in one split")
    return homes


def _split_classes(classes: list[str], seed: int, val_share: float, test_share: float) -> dict[str, str]:
    """Split classes by a digest of their names, so that adding or removing a class moves few others."""
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
    if any(picture.group for picture in ordered):  # an image without a group is a group of one
        keys = [(picture.label, picture.group or str(picture.file)) for picture in ordered]
        known = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        groups = torch.tensor([known[key] for key in keys])
    labels = torch.tensor([numbers[picture.label] for picture in ordered])
    return Bank(torch.stack(images), labels, tuple(numbers), groups)
