"""Datasets that are prepared from files: where their images are, and how to prepare them."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sosn.data.bank import SPLITS
from sosn.data.dataset.cifar import scan_cifar_fs, scan_fc100
from sosn.data.dataset.cub import scan_cub
from sosn.data.dataset.mini_imagenet import scan_mini_imagenet
from sosn.data.dataset.omniglot import scan_omniglot
from sosn.data.dataset.open_mic import scan_open_mic
from sosn.data.dataset.tiered_imagenet import scan_tiered_imagenet
from sosn.data.pixels import LARGEST
from sosn.data.prepare import arrays
from sosn.data.prepare.archive import is_archive, unpack
from sosn.data.prepare.store import Entry, home, prepare, prepared_sizes, read_index
from sosn.errors import DataError, UsageError
from sosn.util.spelling import nearest


@dataclass(frozen=True)
class Preparable:
    """How to find a dataset: a function that lists its images below a folder, and the archives that may contain them."""

    scan: Callable[[Path], list[Entry]]
    size: int
    channels: int
    archives: str  # a pattern for the path of an archive below the source
    forms: str  # description of the layouts that scan knows


CATALOG = {
    "omniglot": Preparable(
        scan_omniglot, 28, 1, r"(^|/)(omniglot|images_(background|evaluation))[^/]*$",
        "images_background and images_evaluation, as folders, zips or a tar of both",
    ),
    "mini-imagenet": Preparable(
        scan_mini_imagenet, 84, 3, r"(^|/)(mini[^/]*|(train|val|test)[^/]*)$",
        "train|val|test/WNID/*.jpg trees, images or an ImageNet tree with train.csv, val.csv, test.csv, or the common pickles",
    ),
    "open-mic": Preparable(
        scan_open_mic, 84, 3, r"(^|/)(open[-_]?mic|museum|crops_)[^/]*$",
        "crops_EX folders with list files, crops_EX.hd5 files, museum/EX/{train,test} or part1…part4 trees",
    ),
    "tiered-imagenet": Preparable(
        scan_tiered_imagenet, 84, 3, r"(^|/)(tiered[^/]*|(train|val|test)[^/]*)$",
        "train|val|test/WNID/*.jpg trees, or {train,val,test}_images_png.pkl with _labels.pkl",
    ),
    "cub": Preparable(scan_cub, 84, 3, r"(^|/)CUB[^/]*$", "CUB_200_2011/images/NNN.Name/*.jpg, or its tgz"),
    "cifar-fs": Preparable(
        scan_cifar_fs, 32, 3, r"(^|/)cifar[^/]*$",
        "cifar-100-python, its tar.gz, folders of PNGs named by class, or CIFAR_FS_{train,val,test}.pickle",
    ),
    "fc100": Preparable(
        scan_fc100, 32, 3, r"(^|/)(cifar|FC100)[^/]*$",
        "cifar-100-python, its tar.gz, folders of PNGs named by class, or FC100_{train,val,test}.pickle",
    ),
}  # fmt: skip


def prepare_dataset(
    name: str,
    source: Path,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    max_pixels: int | None = None,
) -> dict[str, Any]:
    """Decode a dataset into a bank on disk and return its summary. Archives are unpacked to a temporary folder beside it.

    Refuses an unknown dataset, a source that does not exist, and images that cannot be read.
    """
    if name not in CATALOG:
        raise UsageError(f"there is no dataset {name!r} to prepare{nearest(name, CATALOG)}; choose one of {', '.join(CATALOG)}")
    if not source.exists():
        raise DataError(f"{str(source)!r} does not exist: pass the folder or archive with {name}")
    dataset = CATALOG[name]
    home().mkdir(parents=True, exist_ok=True)
    _remove_stale()
    with tempfile.TemporaryDirectory(dir=home(), prefix=f"unpacked-{os.getpid()}-") as folder:
        root = source
        archives = _archives(source, dataset.archives)
        if archives:
            root = Path(folder)
            for archive in archives:
                unpack(archive, root)
        try:
            prepare(name, dataset.scan(root), size or dataset.size, dataset.channels, progress, max_pixels or LARGEST)
        finally:
            arrays.forget()
    return summary(name, size or dataset.size)


def _remove_stale() -> None:
    """Remove the temporary folders of processes that have ended."""
    for folder in home().glob("unpacked-*"):
        number = folder.name.split("-")[1]
        try:
            os.kill(int(number), 0)
        except (ValueError, ProcessLookupError):
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:  # running, as another user
            pass


def _archives(source: Path, pattern: str) -> list[Path]:
    if is_archive(source):
        return [source]
    below = (path for depth in ("*", "*/*") for path in sorted(source.glob(depth)) if is_archive(path))
    return [path for path in below if re.search(pattern, path.relative_to(source).as_posix())]


def summary(name: str, size: int) -> dict[str, Any]:
    """Count the classes and images of a prepared dataset, and of each split in its files."""
    index = read_index(name, size)
    splits: dict[str, dict[str, int]] = {}
    for split, count in zip(index["splits"], index["counts"], strict=True):
        part = splits.setdefault(split, {"classes": 0, "images": 0})
        part["classes"] += 1
        part["images"] += count
    return {
        "name": name, "size": size, "classes": len(index["classes"]), "images": sum(index["counts"]),
        "splits": {split: part for split, part in splits.items() if split},
        "missing": [split for split in SPLITS if split not in splits] if splits.keys() & set(SPLITS) else [],
        "folder": str(home() / f"{name}-{size}"),
    }  # fmt: skip


def prepared() -> list[dict[str, Any]]:
    """Return the summaries of all prepared datasets."""
    return [summary(name, size) for name in CATALOG for size in prepared_sizes(name)]
