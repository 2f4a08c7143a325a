"""One picture of each of many classes: recall of the shortlist, accuracy against scoring all classes, time a query.

    python benchmarks/gallery.py --model omniglot --data omniglot --out results/gallery-omniglot.json     # 1,623-way
    python benchmarks/gallery.py --model glyphs --data glyphs --out results/gallery-glyphs.json

All classes of the dataset take part, those that the model was trained on too, which is said in the result: the measure here is
the cost of many classes, not the accuracy on new ones.
"""

import argparse
import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import sosn
from sosn.device import machine
from sosn.gallery import Gallery

SHORTLISTS = (10, 20, 50, 100)


def pictures(data: str) -> dict[str, Tensor]:
    """The first two drawings of every class of all splits that there are: one to show, one to ask for."""
    classes: dict[str, Tensor] = {}
    for split in ("train", "val", "test"):
        bank = sosn.open_bank(data, split)
        classes |= {name: bank.class_images(name)[:2] for name in bank.names}
    return classes


def measure(model: str, classes: dict[str, Tensor], queries: int) -> dict[str, Any]:
    """Figures of a gallery with these classes."""
    names = list(classes)
    asked = [names[place] for place in np.linspace(0, len(names) - 1, min(queries, len(names))).astype(int)]
    images = [classes[name][1] for name in asked]
    with tempfile.TemporaryDirectory() as folder:
        gallery = Gallery.create(Path(folder) / "gallery", model)
        began = time.perf_counter()
        gallery.add_classes({name: own[:1] for name, own in classes.items()})
        built = time.perf_counter() - began
        size = sum(file.stat().st_size for file in gallery.folder.iterdir())
        row: dict[str, Any] = {"classes": len(names), "build_seconds": built, "bytes": size, "shortlists": []}
        for shortlist in (*SHORTLISTS, None):
            if shortlist is not None and shortlist >= len(names):
                continue
            gallery.search(images[:1], 1, shortlist)
            seconds, right = [], []
            for name, image in zip(asked, images, strict=True):
                began = time.perf_counter()
                best = gallery.search([image], 1, shortlist)[0][0].label
                seconds.append(time.perf_counter() - began)
                right.append(best == name)
            told: dict[str, Any] = {"shortlist": shortlist, "accuracy": float(np.mean(right))}
            told["ms_a_query"] = 1e3 * float(np.median(seconds))
            if shortlist is not None:
                listed = gallery.shortlist(images, shortlist)
                told["recall"] = float(np.mean([name in row for name, row in zip(asked, listed, strict=True)]))
            row["shortlists"].append(told)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="glyphs")
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 400, 0], help="numbers of classes; 0 is all")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    classes = pictures(wanted.data)
    order = np.random.default_rng(0).permutation(list(classes)).tolist()
    rows = []
    for size in wanted.sizes:
        rows.append(measure(wanted.model, {name: classes[name] for name in order[: size or len(order)]}, wanted.queries))
        print(json.dumps(rows[-1]))
    document = {
        "what": f"one picture a class of {wanted.data}, classes of training included; model {wanted.model}",
        "index": "exact product" if find_spec("faiss") is None else "FAISS, flat",
        "queries": wanted.queries,
        "machine": machine(),
        "rows": rows,
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
