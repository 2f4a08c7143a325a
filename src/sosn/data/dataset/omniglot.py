"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each (Lake et al., 2015)."""

import re
from pathlib import Path
from typing import Literal

import torch

from sosn.data.bank import Bank
from sosn.data.prepare.sources import check_split
from sosn.data.prepare.store import Entry, open_prepared, read_index
from sosn.errors import DataError
from sosn.util.seeding import generator

PARTS = ("images_background", "images_evaluation")
VAL = {"Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)"}
TEST = {
    "Kannada", "Keble", "Malayalam", "Manipuri", "Mongolian", "Old_Church_Slavonic_(Cyrillic)", "Oriya", "Sylheti",
    "Syriac_(Serto)", "Tengwar", "Tibetan", "ULOG",
}  # fmt: skip
TEST_CHARACTERS = {f"Gurmukhi/character{number}" for number in (42, 43, 44, 45)}


def scan_omniglot(root: Path) -> list[Entry]:
    """List images_background and images_evaluation/ALPHABET/characterNN/*.png, anywhere below root."""
    folders = {part: sorted(path for path in root.rglob(part) if path.is_dir())[:1] for part in PARTS}
    return [
        Entry("", f"{part}/{file.parent.parent.name}/{file.parent.name}", str(file))
        for part, found in folders.items()
        for folder in found
        for file in folder.glob("*/character*/*.png")
    ]


def omniglot(
    split: str = "train",
    partition: Literal["vinyals", "paper", "lake"] = "vinyals",
    size: int = 28,
    rotations: bool = False,
    all_rotations: bool = False,
) -> Bank:
    """Handwritten characters, grey. partition="vinyals": 1028 train, 172 val, 423 test classes (Vinyals et al., 2016).

    partition="paper": class paths sorted and shuffled with seed 0; 1200 train, of which the last 100 are val, and 423 test.
    partition="lake": the background alphabets are train, except for five that are val, and the evaluation alphabets are test:
    792, 172 and 659 classes (Lake et al., 2015; the val alphabets are those of Vinyals et al.).
    rotations=True: training classes rotated by 90, 180 and 270 degrees are new classes. all_rotations=True: also in val and
    test, as in Snell et al. (2017) and Sung et al. (2018); similar characters are then rarer in an episode, so accuracies
    are higher.
    """
    check_split(split)
    classes = read_index("omniglot", size)["classes"]
    if partition != "paper":
        split_of = vinyals_split if partition == "vinyals" else lake_split
        wanted = {name for name in classes if split_of(name) == split}
    else:
        if len(classes) != 1623:
            raise DataError(f'partition="paper" needs all 1,623 characters, and {len(classes)} are prepared')
        order = torch.randperm(len(classes), generator=generator("omniglot paper", 0)).tolist()
        first, last = {"train": (0, 1100), "val": (1100, 1200), "test": (1200, 1623)}[split]
        wanted = {sorted(classes)[number] for number in order[first:last]}
    bank = open_prepared("omniglot", size, split, lambda name, _: name in wanted, drawer_of)
    if all_rotations or (rotations and split == "train"):
        return bank.with_rotations()
    return bank


def vinyals_split(name: str) -> str:
    """Return the split of a class by its path, such as images_background/Greek/character01."""
    _, alphabet, character = name.split("/")
    if alphabet in TEST or f"{alphabet}/{character}" in TEST_CHARACTERS:
        return "test"
    return "val" if alphabet in VAL else "train"


def lake_split(name: str) -> str:
    """Return the split of a class by its path: the authors' evaluation alphabets are test."""
    part, alphabet, _ = name.split("/")
    if part == "images_evaluation":
        return "test"
    return "val" if alphabet in VAL else "train"


def drawer_of(file: str) -> int | None:
    """Return the number of the drawer in a file name, such as 17 for 0709_17.png; None if there is none."""
    match = re.fullmatch(r"\d+_(\d+)\.png", file)
    return int(match[1]) if match else None
