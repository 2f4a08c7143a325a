"""Prepared datasets: banks on disk, which open fast as memory maps.

A prepared dataset is a folder with images.npy (M×C×H×W uint8, class by class) and index.json (classes, the original split of
each class, counts, groups, file names). It is built in a temporary folder and moved when it is complete. If preparation is
interrupted, it continues where it stopped.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.image import read_image
from sosn.data.pixels import LARGEST
from sosn.data.prepare.arrays import read_row
from sosn.data.prepare.decode import decode
from sosn.data.prepare.decoder import WAY_OUT, How
from sosn.errors import DataError, MissingSplitError, SosnError
from sosn.util.files import write_atomically

BATCH = 64  # images that a thread or process decodes before progress is saved
ROWS = 1024  # rows copied at a time
IN_MEMORY = 2**30  # largest size of scattered rows, in bytes, that are copied to memory


@dataclass(frozen=True, order=True)
class Entry:
    """An image of a dataset: its class, its split ("" if the files have none) and its group ("" if none).

    row: the row, if the file is an array. crop: central share of each side to keep.
    """

    split: str
    label: str
    file: str
    group: str = ""
    row: int | None = None
    crop: float = 1.0

    @property
    def name(self) -> str:
        """The file, with the row if it is an array."""
        return self.file if self.row is None else f"{self.file}[{self.row}]"

    def read(self, size: int, channels: int, max_pixels: int = LARGEST) -> Tensor:
        """Read the image as (channels, size, size) uint8."""
        if self.row is None:
            return read_image(self.file, size, channels, self.crop, max_pixels, WAY_OUT)
        return read_row(self.file, self.row, size, channels, self.crop)


def home() -> Path:
    """Return the folder of prepared datasets: $SOSN_HOME, or sosn in the user's cache folder."""
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
    max_pixels: int = LARGEST,
) -> Path:
    """Decode images in parallel into a bank on disk and return its folder. Raises DataError if an image cannot be read."""
    ordered = sorted(entries)
    target, partial = place(name, size), place(name, size).with_suffix(".partial")
    index = _describe(name, ordered, size, channels)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        done = _resume(partial, index)
        mode = "r+" if (partial / "images.npy").exists() else "w+"
        shape = (len(ordered), channels, size, size)
        images = np.lib.format.open_memmap(partial / "images.npy", mode=mode, dtype=np.uint8, shape=shape)
        with closing(decode(ordered, done, BATCH, How(str(partial / "images.npy"), size, channels, max_pixels))) as counts:
            for count in counts:
                (partial / "done").write_text(f"{count}.")  # survives if this process is killed
                if progress:
                    progress(count, len(ordered))
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
        raise DataError(f"no images of {name} were found: see `sosn data list` for the known layouts")
    classes: dict[tuple[str, str], int] = {}
    for entry in ordered:
        classes[entry.split, entry.label] = classes.get((entry.split, entry.label), 0) + 1
    grouped = any(entry.group for entry in ordered)
    numbers = {group: number for number, group in enumerate(sorted({e.group or e.name for e in ordered}))} if grouped else {}
    return {
        "name": name, "size": size, "channels": channels,
        "classes": [label for _, label in classes], "splits": [split for split, _ in classes],
        "counts": list(classes.values()),
        "groups": [numbers[entry.group or entry.name] for entry in ordered] if grouped else None,
        "files": [Path(entry.name).name for entry in ordered],
    }  # fmt: skip


def _resume(partial: Path, index: dict[str, Any]) -> int:
    """Return how many images an interrupted run has decoded. Starts again if the dataset has changed."""
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
    """Read index.json of a prepared dataset. Refuses a dataset that is not prepared."""
    folder = place(name, size)
    if not (folder / "index.json").is_file():
        raise DataError(
            f"{name} at {size}×{size} is not prepared: run `sosn data prepare {name} --from PATH --size {size}`, where PATH "
            "contains its images"
        )
    index: dict[str, Any] = json.loads((folder / "index.json").read_text("utf-8"))
    return index


def open_prepared(
    name: str, size: int, what: str, keep: Callable[[str, str], bool], drawer: Callable[[str], int | None] | None = None
) -> Bank:
    """Open the classes for which keep(class, original split) is true, as a memory map.

    A class that is in several selected splits is merged. drawer returns the drawer of a file by its name; if it returns None
    for a file, the bank has no drawers. Refuses an empty selection.
    """
    index = read_index(name, size)
    counts = index["counts"]
    ends = np.cumsum(counts)
    runs: dict[str, list[int]] = {}
    for number, (label, split) in enumerate(zip(index["classes"], index["splits"], strict=True)):
        if keep(label, split):
            runs.setdefault(label, []).append(number)
    if not runs:
        raise MissingSplitError(f"{name} at {size}×{size} was prepared without {what} images")
    rows = np.concatenate([np.arange(ends[n] - counts[n], ends[n]) for numbers in runs.values() for n in numbers])
    sizes = torch.tensor([sum(counts[n] for n in numbers) for numbers in runs.values()])
    labels = torch.repeat_interleave(torch.arange(len(runs)), sizes)
    groups = None if index["groups"] is None else torch.tensor(index["groups"])[rows]
    drawn = [drawer(index["files"][row]) for row in rows] if drawer else [None]
    drawers = None if None in drawn else torch.tensor(drawn)
    return Bank(_part(place(name, size) / "images.npy", rows), labels, tuple(runs), groups, drawers)


def _part(file: Path, rows: "np.ndarray[Any, np.dtype[np.int64]]") -> Tensor:
    """Return rows of a file of images: contiguous rows as a memory map, others as a copy in memory or, if large, on disk."""
    images = np.load(file, mmap_mode="c")
    if (np.diff(rows) == 1).all():
        return torch.from_numpy(images[rows[0] : rows[-1] + 1])
    if len(rows) * images[0].nbytes <= IN_MEMORY:
        return torch.from_numpy(images[rows])
    copy = file.with_name(f"part-{hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()}.npy")
    if not copy.exists():
        partial = copy.with_suffix(f".{os.getpid()}.partial")
        target = np.lib.format.open_memmap(partial, "w+", np.uint8, (len(rows), *images.shape[1:]))
        for first in range(0, len(rows), ROWS):
            target[first : first + ROWS] = images[rows[first : first + ROWS]]
        target.flush()
        partial.rename(copy)
    return torch.from_numpy(np.load(copy, mmap_mode="c"))


def prepared_sizes(name: str) -> list[int]:
    """Return the sizes at which a dataset is prepared."""
    found = (path.name.removeprefix(f"{name}-") for path in home().glob(f"{name}-*") if (path / "index.json").is_file())
    return sorted(int(size) for size in found if size.isdigit())
