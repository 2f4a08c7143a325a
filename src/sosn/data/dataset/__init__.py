"""Datasets by name. Each opens as a Bank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sosn.data.bank import Bank
from sosn.data.dataset.cifar import cifar_fs, fc100
from sosn.data.dataset.cub import cub
from sosn.data.dataset.folder import folder
from sosn.data.dataset.glyphs import glyphs
from sosn.data.dataset.mini_imagenet import mini_imagenet
from sosn.data.dataset.omniglot import omniglot
from sosn.data.dataset.open_mic import open_mic
from sosn.data.dataset.tiered_imagenet import tiered_imagenet
from sosn.errors import UsageError
from sosn.util.spelling import nearest
from sosn.util.typed import annotations, check_options

Opener = TypeVar("Opener", bound=Callable[..., Bank])
DATASETS: dict[str, Callable[..., Bank]] = {
    "glyphs": glyphs,
    "omniglot": omniglot,
    "mini-imagenet": mini_imagenet,
    "open-mic": open_mic,
    "tiered-imagenet": tiered_imagenet,
    "cub": cub,
    "cifar-fs": cifar_fs,
    "fc100": fc100,
    "folder": folder,
}
BUILT_IN = frozenset(DATASETS)


def register_dataset(name: str) -> Callable[[Opener], Opener]:
    """Decorator: register a function that opens a dataset under a name, for recipes and open_bank.

    The function takes split ("train", "val" or "test") and options, each with a type and a default, and returns a Bank.
    """

    def register(opener: Opener) -> Opener:
        if name in BUILT_IN:
            raise UsageError(f"dataset {name!r} is one of sosn's own: choose another name")
        DATASETS[name] = opener
        return opener

    return register


def _find(name: str) -> tuple[Callable[..., Bank], tuple[str, ...]]:
    """Return the function that opens a dataset, and the path if the name has one (folder:PATH). Refuses an unknown name."""
    if not isinstance(name, str):
        raise UsageError(
            f"the name of a dataset is a string, not {type(name).__name__}: write, for example, glyphs or folder:PATH"
        )
    dataset, _, place = name.partition(":")
    if dataset not in DATASETS and Path(name).exists():
        raise UsageError(f"there is no dataset {name!r}; to use that folder or CSV, write folder:{name}")
    if dataset not in DATASETS:
        raise UsageError(f"there is no dataset {name!r}{nearest(dataset, DATASETS)}; choose one of {', '.join(DATASETS)}")
    if bool(place) != (dataset == "folder"):
        raise UsageError(
            "write folder:PATH, with the folder of your class folders"
            if dataset == "folder"
            else f"{dataset!r} takes no ':{place}'"
        )
    return DATASETS[dataset], (place,) if place else ()


def dataset_opener(name: str) -> Callable[..., Bank]:
    """Return the function that opens a dataset."""
    return _find(name)[0]


def dataset_options(name: str) -> dict[str, Any]:
    """Return the options of a dataset and their types."""
    return annotations(_find(name)[0], without=("path", "split", "return"))


def open_bank(name: str, split: str, min_images: int = 0, **options: Any) -> Bank:
    """Open a split of a dataset by name. min_images: skip classes with fewer images. Refuses unknown names and options."""
    opener, place = _find(name)
    bank = opener(*place, split=split, **check_options(options, dataset_options(name), name))
    return bank.with_at_least(min_images) if min_images else bank


__all__ = ["DATASETS", "dataset_opener", "dataset_options", "open_bank", "register_dataset"]
