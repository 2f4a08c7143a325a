"""miniImageNet: 100 classes of ImageNet, 600 photos each (Vinyals et al., 2016; split of Ravi & Larochelle, 2017)."""

import csv
from pathlib import Path

from sosn.data.bank import Bank
from sosn.data.prepared import Entry, open_prepared
from sosn.errors import DataError, UsageError

SPLITS = ("train", "val", "test")
ENDINGS = {".jpg", ".jpeg", ".png"}


def scan_mini_imagenet(root: Path) -> list[Entry]:
    """train|val|test/WNID/*.jpg trees, or one flat folder of images with train.csv, val.csv and test.csv (filename,label)."""
    lists = [path for path in sorted(root.rglob("*.csv")) if path.stem in SPLITS]
    return _from_lists(root, lists) if lists else _from_tree(root)


def _from_tree(root: Path) -> list[Entry]:
    entries: list[Entry] = []
    for split in SPLITS:
        for folder in [path for path in root.rglob(split) if path.is_dir()]:
            files = (file for file in folder.glob("n*/*") if file.suffix.lower() in ENDINGS)
            entries += [Entry(split, file.parent.name, str(file)) for file in files]
    return entries


def _from_lists(root: Path, lists: list[Path]) -> list[Entry]:
    where = {file.name: file for file in root.rglob("*") if file.suffix.lower() in ENDINGS}
    entries: list[Entry] = []
    for path in lists:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if not {"filename", "label"} <= row.keys():
                    raise DataError(f"{str(path)!r} has the columns {', '.join(row)}; filename and label are needed")
                if row["filename"] not in where:
                    raise DataError(f"{str(path)!r} lists {row['filename']!r}, which is nowhere below {str(root)!r}")
                entries.append(Entry(path.stem, row["label"], str(where[row["filename"]])))
    return entries


def mini_imagenet(split: str = "train", size: int = 84) -> Bank:
    """Photos, colour: 64 train, 16 val and 20 test classes, as far as they were there when it was prepared."""
    if split not in SPLITS:
        raise UsageError(f"split is {split!r}; choose train, val or test")
    return open_prepared("mini-imagenet", size, split, lambda _, origin: origin == split)
