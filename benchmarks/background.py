"""Measure the accuracy on drawings with the wrong background, with images unchanged and with automatic inversion.

    python benchmarks/background.py --models omniglot glyphs --out results/background-omniglot.json

FewShotClassifier solves 5-way 1-shot tasks of Omniglot's validation classes as drawn (paper), as negatives, and as on a
blackboard, which is simulated: strokes of 0.8 on a background of 0.25 with noise of 0.03. The script also counts how many
drawings of a split would be inverted, and how many of their negatives.
"""

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import sosn
from sosn.classify.background import inverted
from sosn.errors import SosnWarning
from sosn.util.device import machine

WAY, QUERIES = 5, 5
STROKES, BACKGROUND, NOISE = 0.8, 0.25, 0.03  # of a blackboard


def board(images: Tensor) -> Tensor:
    """Turn dark strokes on white into light strokes on a grey background, with noise."""
    noise = NOISE * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    grey = BACKGROUND + (STROKES - BACKGROUND) * (255 - images.float()) / 255 + noise
    return (255 * grey.clamp(0, 1)).round().to(torch.uint8)


LOOKS: dict[str, Callable[[Tensor], Tensor]] = {
    "paper": lambda images: images, "negatives": lambda images: 255 - images, "a board": board
}  # fmt: skip
CASES = [("paper", "paper"), ("negatives", "negatives"), ("paper", "negatives"), ("a board", "a board"), ("paper", "a board")]
POLARITIES: tuple[Literal["as_is", "auto"], ...] = ("as_is", "auto")


def accuracy(model: str, support_look: str, query_look: str, polarity: Literal["as_is", "auto"], tasks: int) -> float:
    """Return the mean accuracy over tasks, which are the same for all looks."""
    sampler = sosn.EpisodeSampler(sosn.open_bank("omniglot", "val"), way=WAY, shot=1, query=QUERIES)
    right: list[float] = []
    for number in range(tasks):
        task = sampler.draw(1, sosn.generator("ground", number))
        assert task.labels is not None
        support, query = LOOKS[support_look](task.support[0, :, 0]), LOOKS[query_look](task.query[0])
        classifier = sosn.FewShotClassifier(model, polarity=polarity).fit(list(support), list(range(WAY)))
        right.append(float(np.mean(classifier.predict(list(query)) == task.labels[0].numpy())))
    return float(np.mean(right))


def measure(model: str, tasks: int) -> list[dict[str, Any]]:
    """Return a row for each look of the support and the queries."""
    return [
        {"model": model, "shown": support_look, "asked": query_look}
        | {polarity: accuracy(model, support_look, query_look, polarity, tasks) for polarity in POLARITIES}
        for support_look, query_look in CASES
    ]


def recognised(split: str) -> dict[str, Any]:
    """Count the drawings of a split that are detected as light-on-dark, and their negatives."""
    images = torch.as_tensor(sosn.open_bank("omniglot", split).images)
    counts = [sum(inverted(part, "light")[1] for part in look.split(1024)) for look in (images, 255 - images)]
    return {"split": split, "drawings": len(images), "turned": counts[0], "negatives_turned": counts[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["omniglot", "glyphs"])
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--splits", nargs="+", default=["train", "val", "test"])
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    warnings.simplefilter("ignore", SosnWarning)
    rows: list[dict[str, Any]] = []
    for model in wanted.models:
        rows += measure(model, wanted.tasks)
        print(*rows[-len(CASES) :], sep="\n", flush=True)
    document = {
        "tasks": wanted.tasks, "queries": WAY * QUERIES, "machine": machine(torch.device("cpu")), "sosn": sosn.__version__,
        "rows": rows,
        "recognised": [recognised(split) for split in wanted.splits],
    }  # fmt: skip
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
