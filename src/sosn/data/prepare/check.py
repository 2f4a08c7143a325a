"""Check a dataset: unreadable files, identical images, tiny classes, mixed sizes."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from sosn.data.bank import SPLITS
from sosn.data.image import read_image
from sosn.data.listing import from_list, is_image
from sosn.data.prepare.catalog import CATALOG
from sosn.data.prepare.store import Entry, place, prepared_sizes, read_index
from sosn.errors import DataError, UsageError

Kind = Literal["unreadable", "identical", "identical across splits", "tiny class", "wrong size", "sizes differ", "left out"]
NOTES = ("sizes differ", "left out")  # notes, not errors
FEWEST = 2  # images that a class needs for an episode


@dataclass(frozen=True)
class Finding:
    """A problem, or a note, with the files or the class that it concerns."""

    kind: Kind
    where: tuple[str, ...]
    detail: str = ""

    @property
    def wrong(self) -> bool:
        return self.kind not in NOTES


def check(name_or_path: str, progress: Callable[[int, int], None] | None = None) -> tuple[list[Finding], int]:
    """Check a prepared dataset, a folder or a CSV. Return the findings and the number of images."""
    if name_or_path in CATALOG:
        return _check_prepared(name_or_path)
    root = Path(name_or_path.removeprefix("folder:"))
    if root.suffix.lower() == ".csv":
        entries = [Entry(listed.split, listed.label, str(listed.file)) for listed in from_list(root)]
        return _check_files(root, entries, progress)
    if not root.is_dir():
        raise UsageError(f"{str(root)!r} is not a prepared dataset, a folder or a CSV: see `sosn data list`")
    return _check_folder(root, progress)


def _check_folder(root: Path, progress: Callable[[int, int], None] | None) -> tuple[list[Finding], int]:
    files = [file for file in sorted(root.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    images = [file for file in files if is_image(file)]
    if not images:
        raise DataError(f"folder {str(root)!r} has no images")
    others = [str(file.relative_to(root)) for file in files if file not in set(images)]
    left_out = [Finding("left out", (name,), "no image extension") for name in others]
    entries = [_entry(root, file) for file in images]
    if any(entry.label for entry in entries):
        strays = [str(Path(entry.file).relative_to(root)) for entry in entries if not entry.label]
        left_out += [Finding("left out", (name,), "not in a class folder") for name in strays]
        entries = [entry for entry in entries if entry.label]
    findings, count = _check_files(root, entries, progress)
    return left_out + findings, count


def _check_files(
    root: Path, entries: Sequence[Entry], progress: Callable[[int, int], None] | None
) -> tuple[list[Finding], int]:
    """Check the files of a folder or CSV, root. Return the findings and the number of files."""
    findings: list[Finding] = []
    digests: list[str] = []
    sizes: dict[tuple[int, int], int] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, (entry, looked) in enumerate(zip(entries, pool.map(_look, entries), strict=True), 1):
            digest, size, trouble = looked
            digests.append(digest)
            if trouble:
                findings.append(Finding("unreadable", (entry.file,), trouble))
            else:
                sizes[size] = sizes.get(size, 0) + 1
            if progress and done % 100 == 0:
                progress(done, len(entries))
    findings += _identical(entries, digests) + _tiny(entries)
    if len(sizes) > 1:
        common = max(sizes, key=lambda size: sizes[size])
        total = sum(sizes.values())
        detail = f"{total - sizes[common]} of {total} images are not {common[0]}×{common[1]}"
        findings.append(Finding("wrong size" if 2 * sizes[common] > total else "sizes differ", (str(root),), detail))
    return findings, len(entries)


def _entry(root: Path, file: Path) -> Entry:
    parts = file.relative_to(root).parts
    split = parts[0] if parts[0] in SPLITS else ""
    return Entry(split, "/".join(parts[bool(split) : -1]), str(file))


def _look(entry: Entry) -> tuple[str, tuple[int, int], str]:
    """Return the digest of a file, the size of its image, and the error if it cannot be read."""
    try:
        digest = hashlib.blake2b(Path(entry.file).read_bytes(), digest_size=16).hexdigest()
        read_image(entry.file, 8, 3)
        with Image.open(entry.file) as image:
            return digest, image.size, ""
    except (DataError, OSError) as error:
        return "", (0, 0), str(error)


def _check_prepared(name: str) -> tuple[list[Finding], int]:
    sizes = prepared_sizes(name)
    if not sizes:
        raise DataError(f"{name} is not prepared: run `sosn data prepare {name} --from PATH`")
    import numpy as np

    index = read_index(name, sizes[0])
    images = np.load(place(name, sizes[0]) / "images.npy", mmap_mode="r")
    labels = [(s, c) for s, c, n in zip(index["splits"], index["classes"], index["counts"], strict=True) for _ in range(n)]
    entries = [Entry(s, c, f"{c}/{file}") for (s, c), file in zip(labels, index["files"], strict=True)]
    digests = [hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() for image in images]
    return _identical(entries, digests) + _tiny(entries), len(entries)


def _identical(entries: Sequence[Entry], digests: Sequence[str]) -> list[Finding]:
    """Return a finding for each image that is identical to an earlier one."""
    first: dict[str, Entry] = {}
    findings = []
    for entry, digest in zip(entries, digests, strict=True):
        if not digest:
            continue
        twin = first.setdefault(digest, entry)
        if twin is not entry:
            kind: Kind = "identical" if twin.split == entry.split else "identical across splits"
            findings.append(Finding(kind, (twin.file, entry.file)))
    return findings


def _tiny(entries: Sequence[Entry]) -> list[Finding]:
    counts: dict[tuple[str, str], int] = {}
    for entry in entries:
        counts[entry.split, entry.label] = counts.get((entry.split, entry.label), 0) + 1
    return [
        Finding("tiny class", (f"{split}/{label}".strip("/"),), f"{count} image{'s' * (count > 1)}")
        for (split, label), count in counts.items()
        if count < FEWEST
    ]
