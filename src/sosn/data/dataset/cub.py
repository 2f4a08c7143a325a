"""CUB-200-2011: 11,788 photos of 200 species of birds (Wah et al., 2011), in the split of Chen et al. (2019)."""

import re
from pathlib import Path

from sosn.data.bank import Bank
from sosn.data.prepare.sources import is_image, open_splits
from sosn.data.prepare.store import Entry


def scan_cub(root: Path) -> list[Entry]:
    """List images/NNN.Name/*.jpg. Counting from 0, even classes are train; odd classes alternate between val and test."""
    entries = []
    for file in root.rglob("images/*/*"):
        number = re.match(r"(\d{3})\.", file.parent.name)
        if number and is_image(file):
            split = ("train", "val", "train", "test")[(int(number[1]) - 1) % 4]
            entries.append(Entry(split, file.parent.name, str(file)))
    return entries


def cub(split: str = "train", size: int = 84) -> Bank:
    """Colour photos of birds, resized to a square without cropping: 100 train, 50 val and 50 test classes."""
    return open_splits("cub", split, size)
