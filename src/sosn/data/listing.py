"""Image files in folders and CSV lists, with their classes."""

import csv
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from sosn.data.bank import SPLITS
from sosn.data.pixels import NEWER
from sosn.errors import DataError, SosnWarning

NAMED = 3  # files named in a message


@dataclass(frozen=True)
class LabelledFile:
    """An image file with its class, split and group."""

    file: Path
    label: str
    split: str = ""
    group: str = ""


def class_files(root: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """Return the image files of each class folder, and the other files: those without an image extension or a class folder.

    Images in folders inside a class folder belong to that class. Refuses a folder without folders, and a class folder without
    images of its own: it could be the folder of several classes.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {str(root)!r}: pass one that has a folder of images for each class")
    found: dict[str, list[Path]] = {}
    others = _visible(root, Path.is_file)
    for entry in _visible(root, Path.is_dir):
        images, skipped_files = image_files(entry)
        if not images:
            below = _visible(entry, Path.is_dir)
            where = f"; it has a folder {below[0].name!r}: pass the folder whose folders contain images" if below else ""
            raise DataError(f"class {entry.name!r} has no images in {str(entry)!r}: add some or remove the folder{where}")
        deeper = [image_files(folder) for folder in list(walk(entry))[1:]]
        found[entry.name] = [*images, *(file for files, _ in deeper for file in files)]
        others += [*skipped_files, *(file for _, rest in deeper for file in rest)]
    if not found:
        raise DataError(f"folder {str(root)!r} has no folders: it needs one for each class")
    return found, others


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the sorted files of a folder: those with an image extension, and the others."""
    files = _visible(folder, Path.is_file)
    return [file for file in files if is_image(file)], [file for file in files if not is_image(file)]


def is_image(file: Path) -> bool:
    """Return whether a file has the extension of an image, even of one that needs a package that is not installed."""
    return file.suffix.lower() in Image.registered_extensions() or file.suffix.lower() in NEWER


def walk(place: Path, known: set[Path] | None = None) -> Iterator[Path]:
    """Yield a folder and its subfolders, each once, even if links lead to it."""
    known = set() if known is None else known
    if place.resolve() in known:
        return
    known.add(place.resolve())
    yield place
    for entry in _visible(place, Path.is_dir):
        yield from walk(entry, known)


def skipped(files: Sequence[Path], root: Path) -> str:
    """Return a message with the first three files that were skipped."""
    names = [str(file.relative_to(root)) if file.is_relative_to(root) else str(file) for file in files]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"skipped {len(names)} file{'s' * (len(names) > 1)} in {str(root)!r}, not images: {', '.join(names[:NAMED])}{more}"


def warn_skipped(root: Path, others: Sequence[Path]) -> None:
    """Warn about the skipped files of a folder of classes, if any."""
    if others:
        message = f"{skipped(others, root)} (no image extension, or not in a class folder)"
        warnings.warn(message.replace(", not images:", ":"), SosnWarning, stacklevel=4)


def _visible(root: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if wanted(entry) and not entry.name.startswith("."))


def from_list(path: Path) -> list[LabelledFile]:
    """Read the image files of a CSV, with their labels and, if it has these columns, groups and splits.

    Refuses missing columns, empty paths and labels, and unknown splits.
    """
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}: pass a CSV with the columns path, label[, group][, split]")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            listed, columns = list(enumerate(rows, 2)), rows.fieldnames
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{str(path)!r} is not a CSV in UTF-8 ({error}): save it again with that encoding") from error
    if not {"path", "label"} <= set(columns or ()):
        raise DataError(f"{str(path)!r} has the columns {columns}; path and label are needed, separated by commas")
    pictures = []
    for number, row in listed:
        if not row["path"] or not row["label"]:
            raise DataError(f"line {number} of {str(path)!r} has path {row['path']!r} and label {row['label']!r}: fill in both")
        if (row.get("split") or "train") not in SPLITS:
            raise DataError(f"line {number} of {str(path)!r} has split {row['split']!r}; it must be train, val or test")
        values = (row["label"], row.get("split") or "", row.get("group") or "")
        pictures.append(LabelledFile(path.parent / row["path"], *values))
    if not pictures:
        raise DataError(f"{str(path)!r} lists no images: add a line with path and label for each")
    return pictures


def list_classes(place: str | os.PathLike[str]) -> tuple[list[Path], list[str]]:
    """Return the image files of a folder of class folders, or of a CSV with the columns path and label, with their classes."""
    if Path(place).suffix.lower() == ".csv":
        listed = from_list(Path(place))
        return [one.file for one in listed], [one.label for one in listed]
    classes, others = class_files(Path(place))
    warn_skipped(Path(place), others)
    files = [file for class_images in classes.values() for file in class_images]
    return files, [label for label, class_images in classes.items() for _ in class_images]
