"""miniImageNet: 100 classes of ImageNet, 600 photos each (Vinyals et al., 2016; split of Ravi & Larochelle, 2017)."""

import csv
import re
from pathlib import Path

from sosn.data.bank import SPLITS, Bank
from sosn.data.prepare.sources import files_of_splits, is_image, open_splits, row_classes, rows_of, split_trees
from sosn.data.prepare.store import Entry
from sosn.errors import DataError

CLASSES = 100
PICKLES = (
    {split: f"mini-imagenet-cache-{split}.pkl" for split in SPLITS},
    {
        "train": "miniImageNet_category_split_train_phase_train.pickle",
        "val": "miniImageNet_category_split_val.pickle",
        "test": "miniImageNet_category_split_test.pickle",
    },
)


def scan_mini_imagenet(root: Path) -> list[Entry]:
    """List the images of train|val|test/WNID/*.jpg trees, of pickles, or of train.csv, val.csv and test.csv (filename,label).

    The CSVs may list existing file names. Or the files are ImageNet's, WNID_NUMBER.JPEG: n0153282900000005.jpg is then the
    fifth file of class n01532829 in the order of the numbers, as in the common generators, so the class must be complete.
    Pickles are mini-imagenet-cache-*.pkl and miniImageNet_category_split_*.pickle.
    """
    lists = [path for path in sorted(root.rglob("*.csv")) if path.stem in SPLITS]
    if lists:
        return _from_lists(root, lists)
    entries = split_trees(root, "n*")
    if len({entry.label for entry in entries}) > CLASSES:
        raise DataError(
            f"{str(root)!r} has more than {CLASSES} classes, like all of ImageNet: add train.csv, val.csv and test.csv"
        )
    for names in PICKLES:
        if not entries:
            files = files_of_splits(root, **names)
            entries = [entry for split, path in files.items() for entry in rows_of(path, split, row_classes(path))]
    return entries


def _from_lists(root: Path, lists: list[Path]) -> list[Entry]:
    listed: list[tuple[str, str, str, Path]] = []  # split, label, file name, list
    for path in lists:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if not {"filename", "label"} <= row.keys():
                    raise DataError(f"{str(path)!r} has the columns {', '.join(row)}; filename and label are needed")
                listed.append((path.stem, row["label"], row["filename"], path))
    named, numbered = _files(root, {name for _, _, name, _ in listed}, {label for _, label, _, _ in listed})
    entries = []
    for split, label, name, path in listed:
        found = named.get(name) or _by_position(numbered, name)
        if found is None:
            raise DataError(f"{str(path)!r} lists {name!r}, which is not below {str(root)!r}")
        entries.append(Entry(split, label, str(found)))
    return entries


def _files(root: Path, names: set[str], classes: set[str]) -> tuple[dict[str, Path], dict[str, list[Path]]]:
    """Return the files with these names, and ImageNet's files of these classes in the order of their numbers."""
    named: dict[str, Path] = {}
    numbered: dict[str, dict[int, Path]] = {}
    for file in root.rglob("*"):
        if file.name in names:
            named[file.name] = file
        elif is_image(file) and (match := re.fullmatch(r"(n\d{8})_(\d+)", file.stem)) and match[1] in classes:
            numbered.setdefault(match[1], {})[int(match[2])] = file
    return named, {label: [files[number] for number in sorted(files)] for label, files in numbered.items()}


def _by_position(numbered: dict[str, list[Path]], name: str) -> Path | None:
    parts = re.fullmatch(r"(n\d{8})(\d{8})\.\w+", name)
    files = numbered.get(parts[1], []) if parts else []
    return files[int(parts[2]) - 1] if parts and 1 <= int(parts[2]) <= len(files) else None


def mini_imagenet(split: str = "train", size: int = 84, rotations: bool = False) -> Bank:
    """Colour photos: 64 train, 16 val and 20 test classes, or those of them that were prepared.

    rotations=True: training classes rotated by 90, 180 and 270 degrees are new classes.
    """
    return open_splits("mini-imagenet", split, size, rotations)
