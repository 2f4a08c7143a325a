"""Datasets decoded once into a bank on disk, which later opens at once as a memory map.

A prepared dataset is a folder with images.npy (M×C×H×W uint8, class by class) and index.json (classes, the split each class
came from, counts, groups, file names). It is built beside its place and moved there when it is whole, so a bank that exists is
complete; preparing again after an interruption goes on where it stopped.
"""

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sosn.data.bank import Bank
from sosn.data.folder import read_image
from sosn.errors import DataError, MissingSplitError, SosnError
from sosn.files import write_atomically

BATCH = 1024  # images between two notes of how far preparing has come


@dataclass(frozen=True, order=True)
class Entry:
    """One image file of a dataset: its class, the split its folder or list names ("" if none), and its group, if any."""

    split: str
    label: str
    file: str
    group: str = ""


def home() -> Path:
    """Where prepared datasets are kept: $SOSN_HOME, or sosn in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SOSN_HOME") or Path(cache) / "sosn")


def place(name: str, size: int) -> Path:
    return home() / f"{name}-{size}"


def prepare(
    name: str,
    entries: Iterable[Entry],
    size: int,
    channels: int,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Decode images in parallel into a bank on disk and return its folder. An unreadable image is named and stops it."""
    ordered = sorted(entries)
    target, partial = place(name, size), place(name, size).with_suffix(".partial")
    index = _describe(name, ordered, size, channels)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        done = _resume(partial, index)
        mode = "r+" if (partial / "images.npy").exists() else "w+"
        shape = (len(ordered), channels, size, size)
        images = np.lib.format.open_memmap(partial / "images.npy", mode=mode, dtype=np.uint8, shape=shape)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for first in range(done, len(ordered), BATCH):
                files = [entry.file for entry in ordered[first : first + BATCH]]
                for row, image in enumerate(pool.map(lambda file: read_image(file, size, channels), files), first):
                    images[row] = image.numpy()
                (partial / "done").write_text(f"{first + len(files)}.")  # the system keeps what a killed process has written
                if progress:
                    progress(first + len(files), len(ordered))
        images.flush()
        del images
        (partial / "done").unlink(missing_ok=True)
        if target.exists():
            _remove(target)
        partial.rename(target)
    except OSError as error:
        raise SosnError(f"cannot write the bank {str(target)!r} ({error.strerror}): free space, or set SOSN_HOME") from error
    return target


def _describe(name: str, ordered: list[Entry], size: int, channels: int) -> dict[str, Any]:
    if not ordered:
        raise DataError(f"no images of {name} were found there: see `sosn data list` for the forms that are known")
    classes: dict[tuple[str, str], int] = {}
    for entry in ordered:
        classes[entry.split, entry.label] = classes.get((entry.split, entry.label), 0) + 1
    grouped = any(entry.group for entry in ordered)
    numbers = {group: number for number, group in enumerate(sorted({e.group or e.file for e in ordered}))} if grouped else {}
    return {
        "name": name, "size": size, "channels": channels,
        "classes": [label for _, label in classes], "splits": [split for split, _ in classes],
        "counts": list(classes.values()),
        "groups": [numbers[entry.group or entry.file] for entry in ordered] if grouped else None,
        "files": [Path(entry.file).name for entry in ordered],
    }  # fmt: skip


def _resume(partial: Path, index: dict[str, Any]) -> int:
    """How many images an interrupted attempt has decoded; anything that is not the same dataset is begun anew."""
    note, about = partial / "done", partial / "index.json"
    if note.exists() and about.exists() and json.loads(about.read_text()) == index:
        count, dot, _ = note.read_text().partition(".")
        return int(count) if dot else 0
    _remove(partial)
    partial.mkdir()
    write_atomically(about, json.dumps(index).encode())
    return 0


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def read_index(name: str, size: int) -> dict[str, Any]:
    """What index.json of a prepared dataset says."""
    folder = place(name, size)
    if not (folder / "index.json").is_file():
        raise DataError(
            f"{name} at {size}×{size} is not prepared: run `sosn data prepare {name} --from PATH --size {size}`, where PATH "
            "holds its images"
        )
    index: dict[str, Any] = json.loads((folder / "index.json").read_text("utf-8"))
    return index


def open_prepared(name: str, size: int, what: str, keep: Callable[[str, str], bool]) -> Bank:
    """The bank of the classes for which keep(class, split it came from) is true, read from disk as needed."""
    index = read_index(name, size)
    images = torch.from_numpy(np.load(place(name, size) / "images.npy", mmap_mode="c"))
    counts = index["counts"]
    ends = np.cumsum(counts)
    chosen = [n for n, (label, split) in enumerate(zip(index["classes"], index["splits"], strict=True)) if keep(label, split)]
    if not chosen:
        raise MissingSplitError(f"{name} at {size}×{size} was prepared without {what} images")
    rows = np.concatenate([np.arange(ends[n] - counts[n], ends[n]) for n in chosen])
    labels = torch.repeat_interleave(torch.arange(len(chosen)), torch.tensor([counts[n] for n in chosen]))
    groups = None if index["groups"] is None else torch.tensor(index["groups"])[rows]
    whole = len(rows) == rows[-1] - rows[0] + 1  # one run of the file: no copy
    part = images[int(rows[0]) : int(rows[-1]) + 1] if whole else images[torch.from_numpy(rows)]
    return Bank(part, labels, tuple(index["classes"][n] for n in chosen), groups)


def prepared_sizes(name: str) -> list[int]:
    """Sizes at which a dataset has been prepared."""
    found = (path.name.removeprefix(f"{name}-") for path in home().glob(f"{name}-*") if (path / "index.json").is_file())
    return sorted(int(size) for size in found if size.isdigit())
