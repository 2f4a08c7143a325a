"""The published one-shot classification tasks of Lake et al. (all_runs.zip), one folder per task."""

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
    """Read runNN/training/classNN.png, runNN/test/itemNN.png and runNN/class_labels.txt, whose lines are ITEM CLASS.

    A class, named runNN/classNN, has two images: the training image, then the test image. Refuses a run in which a class has
    not exactly one test image, and runs with different numbers of classes.
    """
    found = sorted(folder.rglob(LABELS))
    if not found:
        raise DataError(f"{str(folder)!r} has no runs: pass the folder with the unpacked all_runs.zip")
    classes: dict[str, Tensor] = {}
    for file in found:
        for label, item in _pairs(file).items():
            pair = (file.parent / "training" / label, file.parent / "test" / item)
            images = torch.stack([read_image(image, SIZE, 1) for image in pair])
            classes[f"{file.parent.name}/{Path(label).stem}"] = images
    sizes = alphabets(tuple(classes))
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{run} has {size}" for run, size in sizes.items())
        raise DataError(f"the runs in {str(folder)!r} have different numbers of classes ({listed}): evaluate them one by one")
    return Bank.from_classes(classes)


def run_rows(bank: Bank) -> tuple[Tensor, Tensor]:
    """Return rows of a bank of runs: support (runs, L, 1), query (runs, L)."""
    way = len(bank.names) // len(alphabets(bank.names))
    examples = bank.starts.cpu().view(-1, way)
    return examples.unsqueeze(-1), examples + 1


def _pairs(file: Path) -> dict[str, str]:
    """Return the test image of each class, by file names only, because the first folder of the paths varies."""
    pairs: dict[str, str] = {}
    lines = [line.split() for line in file.read_text("utf-8").splitlines() if line.strip()]
    for line in lines:
        if len(line) != 2:
            raise DataError(f"{str(file)!r} has the line {' '.join(line)!r}: each line needs a test image and a training image")
        item, label = (Path(word).name for word in line)
        if label in pairs or item in pairs.values():
            raise DataError(f"{str(file)!r} lists {label!r} or {item!r} twice: each class needs one test image")
        pairs[label] = item
    if len(pairs) < 2:
        raise DataError(f"{str(file)!r} lists {len(pairs)} classes; a task needs 2 or more")
    return dict(sorted(pairs.items()))
