"""Layouts that several datasets share: folders of splits, and arrays with a label for each row."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sosn.data.bank import SPLITS, Bank
from sosn.data.prepare import arrays
from sosn.data.prepare.store import Entry, open_prepared
from sosn.errors import DataError, UsageError

ENDINGS = {".jpg", ".jpeg", ".png"}


def is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def split_trees(root: Path, classes: str = "*") -> list[Entry]:
    """List train|val|test/CLASS/*.jpg, anywhere below root. classes: a pattern for the names of class folders."""
    return [
        Entry(split, file.parent.name, str(file))
        for split in SPLITS
        for folder in root.rglob(split)
        if folder.is_dir()
        for file in folder.glob(f"{classes}/*")
        if is_image(file)
    ]


def files_of_splits(root: Path, **patterns: str) -> dict[str, Path]:
    """Return the first file below root for the pattern of each split, if there is one."""
    found = {split: sorted(root.rglob(pattern)) for split, pattern in patterns.items()}
    return {split: paths[0] for split, paths in found.items() if paths}


def rows_of(path: Path, split: str, labels: Iterable[str | None]) -> list[Entry]:
    """Return an entry for each row of an array file, given the class of each row; None skips the row."""
    return [Entry(split, label, str(path), row=row) for row, label in enumerate(labels) if label is not None]


def row_classes(path: Path) -> list[str | None]:
    """Return the class of each row of a pickle, from class_dict, or from labels and, if present, catname2label."""
    columns = arrays.table(path)
    count = len(arrays.images(path))
    if "class_dict" in columns:
        classes: list[str | None] = [None] * count
        for name, rows in columns["class_dict"].items():
            for row in rows:
                if not 0 <= row < count:
                    raise DataError(f"{str(path)!r} has row {row} for class {name!r}, and only {count} rows")
                classes[int(row)] = _name(name)
        return classes
    return numbered_classes(path, arrays.column(path, "labels"), columns.get("catname2label", {}), count)


def numbered_classes(path: Path, labels: Sequence[int], numbers: dict[str, int], count: int) -> list[str | None]:
    """Return the class of each row, by name if numbers contains it. Refuses a number of labels other than count."""
    if len(labels) != count:
        raise DataError(f"{str(path)!r} has {len(labels)} labels for {count} images")
    names = {int(number): _name(name) for name, number in numbers.items()}
    unnamed = path.stem.removesuffix("_labels")  # numbers start again in every file
    return [names.get(int(label), f"{unnamed}/{int(label):04}") for label in labels]


def _name(name: str | bytes) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise UsageError(f"split is {split!r}; choose train, val or test")


def open_splits(name: str, split: str, size: int, rotations: bool = False) -> Bank:
    """Open a split of a prepared dataset. rotations: training classes rotated by right angles are new classes."""
    check_split(split)
    bank = open_prepared(name, size, split, lambda _, origin: origin == split)
    return bank.with_rotations() if rotations and split == "train" else bank
