"""Image files of folders and lists: which there are, and what class each is of."""

import csv
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from sosn.data.bank import SPLITS
from sosn.errors import DataError, SosnWarning

NAMED = 3  # files that a sentence names


@dataclass(frozen=True)
class LabelledFile:
    """An image file, and what is said of it."""

    file: Path
    label: str
    split: str = ""
    group: str = ""


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


def skipped(files: Sequence[Path], root: Path) -> str:
    """A sentence that names files which are not images, the first three of them."""
    names = [str(file.relative_to(root)) if file.is_relative_to(root) else str(file) for file in files]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"skipped {len(names)} file{'s' * (len(names) > 1)} in {str(root)!r}, not images: {', '.join(names[:NAMED])}{more}"


def warn_left_out(root: Path, others: Sequence[Path]) -> None:
    """Say which files of a folder of classes are not looked at, if any."""
    if others:
        sentence = f"{skipped(others, root)} (not images by their names, or in no class folder)"
        warnings.warn(sentence.replace(", not images:", ":"), SosnWarning, stacklevel=4)


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


def list_classes(folder: str | os.PathLike[str]) -> tuple[list[Path], list[str]]:
    """The image files of a folder of folders, and for each the name of its folder, which is its class."""
    classes, others = class_files(Path(folder))
    warn_left_out(Path(folder), others)
    files = [file for own in classes.values() for file in own]
    return files, [label for label, own in classes.items() for _ in own]
