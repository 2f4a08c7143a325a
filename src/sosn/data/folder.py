"""Anybody's own images: a folder of classes, each a folder of image files."""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from sosn.data.bank import Bank
from sosn.errors import DataError, MissingSplitError, UsageError
from sosn.seeding import generator

SPLITS = ("train", "val", "test")
LARGEST = 50_000_000  # pixels of an image that is opened without asking


def folder(
    path: str,
    split: str = "train",
    size: int = 84,
    channels: int = 3,
    split_seed: int = 0,
    val_share: float = 0.2,
    test_share: float = 0.2,
) -> Bank:
    """Images under path/train, path/val and path/test, a folder a class; or path/CLASS, split by class with a seed.

    Images are resized, antialiased, to size×size. A missing folder, an empty class and an unreadable file are refused.
    """
    if size < 1 or channels not in (1, 3):
        raise UsageError(f"size is {size} and channels {channels}; a size of 1 or more and 1 (grey) or 3 (colour) are needed")
    if not (val_share >= 0 and test_share >= 0 and val_share + test_share < 1):
        raise UsageError(f"val_share={val_share} and test_share={test_share}; both are 0 or more and leave some for train")
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"there is no folder {str(root)!r}: give one that holds a folder of images for each class")
    if split not in SPLITS:
        raise UsageError(f"split is {split!r}; choose train, val or test")
    if any((root / name).is_dir() for name in SPLITS):
        if not (root / split).is_dir():
            present = [name for name in SPLITS if (root / name).is_dir()]
            raise MissingSplitError(f"folder {str(root)!r} has {', '.join(present)} and no {split!r}: add that folder")
        _refuse_shared(root)
        classes = _class_folders(root / split)
    else:
        classes = _split_classes(_class_folders(root), split, split_seed, val_share, test_share)
    return Bank.from_classes({entry.name: _read_class(entry, size, channels) for entry in classes})


def _refuse_shared(root: Path) -> None:
    """A class that stands in two splits would be known before it is judged."""
    seen: dict[str, str] = {}
    for split in (name for name in SPLITS if (root / name).is_dir()):
        for entry in _class_folders(root / split):
            if seen.setdefault(entry.name, split) != split:
                raise DataError(
                    f"class {entry.name!r} stands in {seen[entry.name]} and in {split} of {str(root)!r}: keep it in one"
                )


def _class_folders(root: Path) -> list[Path]:
    classes = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise MissingSplitError(f"folder {str(root)!r} has no folders in it: it needs one for each class")
    return classes


def _split_classes(classes: list[Path], split: str, seed: int, val_share: float, test_share: float) -> list[Path]:
    order = torch.randperm(len(classes), generator=generator("split", seed)).tolist()
    test, val = round(len(classes) * test_share), round(len(classes) * val_share)
    bounds = {"test": (0, test), "val": (test, test + val), "train": (test + val, len(classes))}
    first, last = bounds[split]
    if first >= last:
        raise MissingSplitError(f"{len(classes)} classes leave none for {split!r}: add classes or change {split}_share")
    return sorted(classes[index] for index in order[first:last])


def _read_class(entry: Path, size: int, channels: int) -> Tensor:
    files = sorted(file for file in entry.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise DataError(f"class {entry.name!r} has no images in {str(entry)!r}: add some or remove the folder")
    return torch.stack([read_image(file, size, channels) for file in files])


def read_image(file: str | os.PathLike[str], size: int, channels: int) -> Tensor:
    """One image file as (channels, size, size) uint8, turned as its EXIF says, transparency on white."""
    try:
        with Image.open(file) as opened:
            if opened.width * opened.height > LARGEST:
                raise DataError(
                    f"image {str(file)!r} has {opened.width}×{opened.height} pixels; {LARGEST:,} is the limit: shrink it"
                )
            image = ImageOps.exif_transpose(_eight_bit(opened))
            if image.has_transparency_data:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            image = image.convert("L" if channels == 1 else "RGB")
            if image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)  # Pillow's filters antialias
            return torch.from_numpy(np.array(image)).view(size, size, channels).permute(2, 0, 1)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError) as error:
        raise DataError(f"image {str(file)!r} cannot be read ({error}): replace or remove it") from error


def _eight_bit(image: Image.Image) -> Image.Image:
    """Deep grey scaled to 8 bits: Pillow itself cuts such values off at 255. Floating point is refused, having no scale."""
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range; save it with 8 or 16 bits")
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return image
    values = np.asarray(image, dtype=np.int64)
    shallow = Image.fromarray((values >> (24 if values.max(initial=0) > 65535 else 8)).clip(0, 255).astype(np.uint8))
    shallow.info["exif"] = image.info.get("exif", b"")
    return shallow
