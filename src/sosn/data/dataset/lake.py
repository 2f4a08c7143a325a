"""The one-shot classification tasks of Lake et al. as they give them out (all_runs.zip): a folder a task."""

from pathlib import Path

import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.image import read_image
from sosn.data.sampler import alphabets
from sosn.errors import DataError

LABELS = "class_labels.txt"
SIZE = 105  # side of Omniglot's drawings


def read_runs(folder: Path) -> Bank:
    """runNN/training/classNN.png, runNN/test/itemNN.png and runNN/class_labels.txt, whose lines are ITEM CLASS.

    A class, called runNN/classNN, has two images: its example, then the item that is to be told. Refuses a run in which a
    class has no item or several, and runs of different numbers of classes.
    """
    found = sorted(folder.rglob(LABELS))
    if not found:
        raise DataError(f"{str(folder)!r} holds no run: give the folder that all_runs.zip was unpacked to")
    classes: dict[str, Tensor] = {}
    for file in found:
        for label, item in _pairs(file).items():
            pair = (file.parent / "training" / label, file.parent / "test" / item)
            images = torch.stack([read_image(one, SIZE, 1) for one in pair])
            classes[f"{file.parent.name}/{Path(label).stem}"] = images
    sizes = alphabets(tuple(classes))
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{run} has {size}" for run, size in sizes.items())
        raise DataError(f"the runs in {str(folder)!r} have different numbers of classes ({told}): evaluate them one by one")
    return Bank.from_classes(classes)


def run_rows(bank: Bank) -> tuple[Tensor, Tensor]:
    """Rows of a bank of runs: support (runs, L, 1), query (runs, L)."""
    way = len(bank.names) // len(alphabets(bank.names))
    examples = bank.starts.cpu().view(-1, way)
    return examples.unsqueeze(-1), examples + 1


def _pairs(file: Path) -> dict[str, str]:
    """The item of each class. Their paths begin at a folder that people call differently, so file names alone count."""
    pairs: dict[str, str] = {}
    lines = [line.split() for line in file.read_text("utf-8").splitlines() if line.strip()]
    for line in lines:
        if len(line) != 2:
            raise DataError(f"{str(file)!r} has the line {' '.join(line)!r}: a line names a test image and a training image")
        item, label = (Path(word).name for word in line)
        if label in pairs or item in pairs.values():
            raise DataError(f"{str(file)!r} names {label!r} or {item!r} twice: each class has one item")
        pairs[label] = item
    if len(pairs) < 2:
        raise DataError(f"{str(file)!r} names {len(pairs)} classes; a task needs 2 or more")
    return dict(sorted(pairs.items()))
