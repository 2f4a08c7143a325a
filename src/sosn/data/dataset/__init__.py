"""Datasets by name: each opens as a Bank."""

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


def register_dataset(name: str) -> Callable[[Opener], Opener]:
    """Make a dataset known by a name, for recipes and open_bank; a decorator of the function that opens it.

    The function takes split ("train", "val" or "test") and its own options, each with a type and a default, and returns a Bank.
    """

    def register(opener: Opener) -> Opener:
        DATASETS[name] = opener
        return opener

    return register


def _find(name: str) -> tuple[Callable[..., Bank], tuple[str, ...]]:
    """The function that opens a dataset, and its place if the name carries one (folder:PATH)."""
    if not isinstance(name, str):
        raise UsageError(f"a dataset is named in words, not by {type(name).__name__}: write for instance glyphs or folder:PATH")
    kind, _, place = name.partition(":")
    if kind not in DATASETS and Path(name).exists():
        raise UsageError(f"there is no dataset {name!r}; for the images of that folder or list write folder:{name}")
    if kind not in DATASETS:
        raise UsageError(f"there is no dataset {name!r}{nearest(kind, DATASETS)}; there are {', '.join(DATASETS)}")
    if bool(place) != (kind == "folder"):
        raise UsageError(
            "write folder:PATH, with the folder that holds your classes"
            if kind == "folder"
            else f"{kind!r} takes no ':{place}'"
        )
    return DATASETS[kind], (place,) if place else ()


def dataset_opener(name: str) -> Callable[..., Bank]:
    """The function that opens a dataset."""
    return _find(name)[0]


def dataset_options(name: str) -> dict[str, Any]:
    """Options of a dataset and their types."""
    return annotations(_find(name)[0], without=("path", "split", "return"))


def open_bank(name: str, split: str, min_images: int = 0, **options: Any) -> Bank:
    """A split of a dataset, by name."""
    opener, place = _find(name)
    bank = opener(*place, split=split, **check_options(options, dataset_options(name), name))
    return bank.with_at_least(min_images) if min_images else bank


__all__ = ["DATASETS", "dataset_opener", "dataset_options", "open_bank", "register_dataset"]
