"""Measure a gallery of many classes with one image each: recall of the shortlist, accuracy, time per query.

    python benchmarks/gallery.py answers --model omniglot --data omniglot --device cuda --queries 1000 --out results/FILE.json
    python benchmarks/gallery.py times --model omniglot --data omniglot --queries 30 --out results/FILE.json

`answers` measures accuracy with 95% intervals on many queries, on any device. `times` measures single queries, on the CPU by
default. Each replaces its part of the file and keeps the other part if it has the same weights; the documentation shows
results/gallery-omniglot.json. All classes of the dataset are used, also training classes of the model, as the result says: this
measures the cost of many classes, not the accuracy on new ones.
"""

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import sosn
from sosn.checkpoint.registry import model_path
from sosn.classify.gallery import Gallery
from sosn.util.device import machine, resolve_device

SHORTLISTS = (10, 20, 50, 100)
Asked = list[tuple[str, Tensor]]  # queries: the true class and an image of it


def pictures(data: str) -> dict[str, Tensor]:
    """Return the images of every class of all splits: the first is the support, the others are queries."""
    classes: dict[str, Tensor] = {}
    for split in ("train", "val", "test"):
        bank = sosn.open_bank(data, split)
        classes |= {name: bank.class_images(name) for name in bank.names}
    return classes


def ask(classes: dict[str, Tensor], queries: int) -> Asked:
    """Return this number of queries: the second image of each class, then the third of each, and so on."""
    most = max(len(images) for images in classes.values())
    pool = ((name, images[place]) for place in range(1, most) for name, images in classes.items() if place < len(images))
    return [one for one, _ in zip(pool, range(queries), strict=False)]


def measure(part: str, model: str, classes: dict[str, Tensor], queries: int, device: str) -> dict[str, Any]:
    """Measure the answers or the times of a gallery with these classes."""
    asked = ask(classes, queries)
    with tempfile.TemporaryDirectory() as folder:
        gallery = Gallery.create(Path(folder) / "gallery", model, device)
        began = time.perf_counter()
        gallery.add_classes({name: images[:1] for name, images in classes.items()})
        built = time.perf_counter() - began
        row: dict[str, Any] = {"classes": len(classes), "queries": len(asked)}
        if part == "times":
            row |= {"build_seconds": built, "bytes": sum(file.stat().st_size for file in gallery.folder.iterdir())}
        lists = [size for size in SHORTLISTS if size < len(classes)]
        look = answers if part == "answers" else times
        return row | {"shortlists": [{"shortlist": size, **look(gallery, asked, size)} for size in (*lists, None)]}


def answers(gallery: Gallery, asked: Asked, shortlist: int | None) -> dict[str, Any]:
    """Return the accuracy, and the share of queries whose class is in the shortlist."""
    names, images = [name for name, _ in asked], [image for _, image in asked]
    found = gallery.search(images, 1, shortlist)
    figures = share([row[0].label == name for name, row in zip(names, found, strict=True)], names, "accuracy")
    if shortlist is not None:
        listed = gallery.shortlist(images, shortlist)
        figures |= share([name in row for name, row in zip(names, listed, strict=True)], names, "recall")
    return figures


def times(gallery: Gallery, asked: Asked, shortlist: int | None) -> dict[str, Any]:
    """Return the median time of a single query, after a warm-up."""
    gallery.search([asked[0][1]], 1, shortlist)
    seconds = []
    for _, image in asked:
        began = time.perf_counter()
        gallery.search([image], 1, shortlist)
        seconds.append(time.perf_counter() - began)
    return {"ms_a_query": 1e3 * float(np.median(seconds))}


def share(right: list[bool], names: list[str], called: str) -> dict[str, Any]:
    """Return the share of correct answers and Wilson's 95% interval over classes, whose queries share a support image."""
    mean, count, z = float(np.mean(right)), len(set(names)), 1.96
    middle, scale = mean + z**2 / (2 * count), 1 + z**2 / count
    half = z * (mean * (1 - mean) / count + z**2 / (4 * count**2)) ** 0.5
    return {called: mean, f"{called}_ci95": [round(end / scale, 6) for end in (middle - half, middle + half)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["answers", "times"])
    parser.add_argument("--model", default="glyphs")
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 400, 0], help="numbers of classes; 0 is all")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    classes = pictures(wanted.data)
    order = np.random.default_rng(0).permutation(list(classes)).tolist()
    rows = []
    for size in wanted.sizes:
        chosen = {name: classes[name] for name in order[: size or len(order)]}
        rows.append(measure(wanted.part, wanted.model, chosen, wanted.queries, wanted.device))
        print(json.dumps(rows[-1]))
    weights = hashlib.sha256(model_path(wanted.model).read_bytes()).hexdigest()[:8]  # so that no file mixes two models
    what = f"one picture a class of {wanted.data}, classes of training included; model {wanted.model} ({weights})"
    known = json.loads(wanted.out.read_text("utf-8")) if wanted.out.exists() else {}
    document = known if known.get("what") == what else {"what": what}
    document[wanted.part] = {
        "machine": machine(resolve_device(wanted.device)),
        "index": "sketches, then cosines of descriptors",
        "rows": rows,
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
