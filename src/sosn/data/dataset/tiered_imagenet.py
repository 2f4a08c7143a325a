"""tieredImageNet: 608 classes of ImageNet, split by 34 broader categories into 351, 97 and 160 (Ren et al., 2018)."""

from pathlib import Path

from sosn.data.bank import SPLITS, Bank
from sosn.data.prepare import arrays
from sosn.data.prepare.sources import files_of_splits, numbered_classes, open_splits, rows_of, split_trees
from sosn.data.prepare.store import Entry
from sosn.errors import DataError


def scan_tiered_imagenet(root: Path) -> list[Entry]:
    """List the images of train|val|test/WNID/*.jpg trees, or of {train,val,test}_images_png.pkl (or .npz) with _labels.pkl."""
    entries = split_trees(root, "n*")
    if entries:
        return entries
    for ending in ("_images_png.pkl", "_images.npz"):
        for split, images in files_of_splits(root, **{split: f"{split}{ending}" for split in SPLITS}).items():
            labels = images.with_name(f"{split}_labels.pkl")
            if not labels.is_file():
                raise DataError(f"{str(images)!r} has no {labels.name} beside it: add it")
            entries += rows_of(images, split, _classes(labels, len(arrays.images(images))))
        if entries:
            break
    return entries


def _classes(path: Path, count: int) -> list[str | None]:
    columns = arrays.table(path)
    labels = arrays.column(path, "label_specific", "labels")
    names = {name: number for number, name in enumerate(columns.get("label_specific_str", ()))}
    return numbered_classes(path, labels, names, count)


def tiered_imagenet(split: str = "train", size: int = 84) -> Bank:
    """Colour photos: 351 train, 97 val and 160 test classes, or those of them that were prepared."""
    return open_splits("tiered-imagenet", split, size)
