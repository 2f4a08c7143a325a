"""CIFAR-FS and FC100: the 100 classes of CIFAR-100, 600 images of 32×32 each, in two few-shot splits."""

from collections.abc import Callable
from pathlib import Path

from sosn.data.bank import SPLITS, Bank
from sosn.data.prepare import arrays
from sosn.data.prepare.sources import files_of_splits, is_image, numbered_classes, open_splits, row_classes, rows_of
from sosn.data.prepare.store import Entry

SUPERCLASSES = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
CIFAR_FS_VAL = set(
    (
        "beaver otter flatfish shark lamp television beetle butterfly sea camel cattle crab crocodile maple_tree "
        "motorcycle tractor"
    ).split()
)
CIFAR_FS_TEST = set(
    (
        "whale poppy rose sweet_pepper telephone bed table wardrobe leopard plain chimpanzee fox snail worm baby man "
        "woman bicycle pickup_truck rocket"
    ).split()
)
FC100_VAL = {"large_carnivores", "large_omnivores_and_herbivores", "non-insect_invertebrates", "small_mammals"}
FC100_TEST = {"aquatic_mammals", "insects", "medium_mammals", "people"}

_SUPERCLASS = {name: broad for broad, names in SUPERCLASSES.items() for name in names.split()}


def cifar_fs_split(name: str) -> str:
    """Return the CIFAR-FS split of a class, drawn at random by its authors (Bertinetto et al., 2019): 64, 16 and 20 classes."""
    return "val" if name in CIFAR_FS_VAL else "test" if name in CIFAR_FS_TEST else "train"


def fc100_split(name: str) -> str:
    """Return the FC100 split of a class, by superclass (Oreshkin et al., 2018): 60, 20 and 20 classes."""
    broad = _SUPERCLASS[name]
    return "val" if broad in FC100_VAL else "test" if broad in FC100_TEST else "train"


def scan_cifar_fs(root: Path) -> list[Entry]:
    """List the images of cifar-100-python, of PNG folders named by class, or of CIFAR_FS_{train,val,test}.pickle."""
    return _scan(root, cifar_fs_split, "CIFAR_FS")


def scan_fc100(root: Path) -> list[Entry]:
    """List the images of cifar-100-python, of PNG folders named by class, or of FC100_{train,val,test}.pickle."""
    return _scan(root, fc100_split, "FC100")


def _scan(root: Path, split_of: Callable[[str], str], pickles: str) -> list[Entry]:
    files = files_of_splits(root, **{split: f"{pickles}_{split}.pickle" for split in SPLITS})
    if files:
        return [entry for split, path in files.items() for entry in rows_of(path, split, row_classes(path))]
    metas = sorted(root.rglob("cifar-100-python/meta"))
    if not metas:
        pictures = (file for file in root.rglob("*/*") if file.parent.name in _SUPERCLASS and is_image(file))
        return [Entry(split_of(file.parent.name), file.parent.name, str(file)) for file in pictures]
    names = {name: number for number, name in enumerate(arrays.column(metas[0], "fine_label_names"))}
    entries: list[Entry] = []
    for half in ("train", "test"):  # CIFAR-100's splits, both used completely
        path = metas[0].with_name(half)
        labels = arrays.column(path, "fine_labels")
        for row, name in enumerate(numbered_classes(path, labels, names, len(arrays.images(path)))):
            entries += [Entry(split_of(name), name, str(path), row=row)] if name else []
    return entries


def cifar_fs(split: str = "train", size: int = 32) -> Bank:
    """Small colour images: 64 train, 16 val and 20 test classes, split at random."""
    return open_splits("cifar-fs", split, size)


def fc100(split: str = "train", size: int = 32) -> Bank:
    """Small colour images: 60 train, 20 val and 20 test classes, split by superclass."""
    return open_splits("fc100", split, size)
