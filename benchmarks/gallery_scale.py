"""Measure a gallery of up to 100,000 classes: times to build, open, add, remove and query, memory, and recall.

    python benchmarks/gallery_scale.py --out results/gallery-100k.json

The classes are characters of a dataset, turned by multiples of 90° and warped by random affine maps, one image of each. A query
is another drawing of a character, turned and warped in the same way. This measures the cost of many classes, not accuracy: most
classes resemble another one. Takes about ten minutes for 100,000 classes of Omniglot on one core; with --folder the gallery is
kept, and a second call continues or measures again. Sizes of earlier calls stay in the file. Times are those of the fastest of
many calls, which other programs disturb least.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sosn
from sosn.classify.gallery import SHORTLIST, Gallery
from sosn.classify.support import encode_images
from sosn.util.device import machine, resolve_device
from sosn.util.seeding import generator
from sosn.util.warping import seen_through

WARP = 0.35  # largest change of an entry of the affine map
SHIFT = 0.1  # largest shift, in halves of the image
CHANGES = 10  # classes added and removed one by one
PROBE = """
import json, re, sys, time
from pathlib import Path
import numpy as np, torch
from sosn.classify.gallery import Gallery
def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000
torch.set_num_threads(int(sys.argv[2]))
images = torch.from_numpy(np.load(sys.argv[3]))
told = {"start_mb": resident()}
began = time.perf_counter()
gallery = Gallery(sys.argv[1])
told |= {"open_seconds": time.perf_counter() - began, "open_mb": resident()}
began = time.perf_counter()
gallery.search(images[:1])
told["first_query_seconds"] = time.perf_counter() - began
for part in images.split(1):
    gallery.search(part)
print(json.dumps(told | {"query_mb": resident()}))
"""


def turned(images: Tensor, number: int) -> Tensor:
    """Turn and warp uint8 images (B, C, H, W) in the same way, which depends on the number."""
    source = generator("gallery", number)
    change = torch.cat((WARP * _within(2, 2, source), SHIFT * _within(2, 1, source)), 1) * (number >= 4)  # 4 plain turns
    windows = (torch.eye(2, 3) + change).unsqueeze(0)
    found = seen_through(torch.rot90(images.float() / 255, number % 4, (2, 3)), windows)
    return (255 * found).round().to(torch.uint8)


def _within(rows: int, columns: int, source: torch.Generator) -> Tensor:
    return 2 * torch.rand(rows, columns, generator=source) - 1


def drawings(data: str) -> tuple[list[str], Tensor]:
    """Return the names of all classes of all splits, and two images of each, (classes, 2, C, H, W)."""
    banks = [sosn.open_bank(data, split) for split in ("train", "val", "test")]
    names = [name for bank in banks for name in bank.names]
    return names, torch.stack([bank.class_images(name)[:2] for bank in banks for name in bank.names])


def grow(gallery: Gallery, names: list[str], images: Tensor, size: int) -> float:
    """Add classes until there are `size`; return the milliseconds per class of the fastest part."""
    best = np.inf
    while len(gallery) < size:
        number, first = divmod(len(gallery), len(names))
        last = min(len(names), first + size - len(gallery))
        shown = turned(images[first:last, 0], number)
        began = time.perf_counter()
        gallery.add_classes({f"{name} {number}": one[None] for name, one in zip(names[first:last], shown, strict=True)})
        best = min(best, 1e3 * (time.perf_counter() - began) / (last - first))
        print(f"{len(gallery):,} classes", flush=True)
    return best


def ask(names: list[str], images: Tensor, size: int, queries: int) -> tuple[list[str], Tensor]:
    """Return queries of classes drawn at random: their labels, and images (Q, C, H, W)."""
    places = torch.randperm(size, generator=generator("gallery queries"))[:queries].tolist()
    found = [(names[place % len(names)], place // len(names), images[place % len(names), 1:]) for place in places]
    return [f"{name} {number}" for name, number, _ in found], torch.cat([turned(image, number) for _, number, image in found])


def nearest(gallery: Gallery, images: Tensor) -> list[set[str]]:
    """Return the shortlist of each image by the cosines of all descriptors, without sketches."""
    queries = gallery._directions(gallery.method.describe(encode_images(gallery.method, images).unsqueeze(1)))
    ids, labels, cosines = gallery._store.ids(), [], []
    for first in range(0, len(ids), 2_000):
        part = gallery._store.fetch(ids[first : first + 2_000], gallery._shape)
        labels += part.labels
        cosines.append(queries @ gallery._directions(part.descriptors).T)
    return [{labels[place] for place in row} for row in torch.cat(cosines, 1).topk(SHORTLIST, dim=1).indices.tolist()]


def fastest_ms(act: Callable[[int], object], times: int) -> float:
    """Return the time of the fastest of the calls with the numbers 0, 1, …, in milliseconds."""
    seconds = []
    for number in range(times):
        began = time.perf_counter()
        act(number)
        seconds.append(time.perf_counter() - began)
    return 1e3 * min(seconds)


@torch.inference_mode()
def measure(gallery: Gallery, labels: list[str], images: Tensor) -> dict[str, Any]:
    """Measure a gallery that is built."""
    listed, exact = gallery.shortlist(images), nearest(gallery, images)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "images.npy", images.numpy())
        words = [str(gallery.folder), str(torch.get_num_threads()), str(Path(folder) / "images.npy")]
        told = subprocess.run([sys.executable, "-c", PROBE, *words], check=True, capture_output=True, text=True).stdout
    return {
        "classes": len(gallery),
        "queries": len(images),
        "bytes": sum(file.stat().st_size for file in gallery.folder.iterdir()),
        "add_ms": fastest_ms(lambda number: gallery.add(f"new {number}", images[number : number + 1]), CHANGES),
        "remove_ms": fastest_ms(lambda number: gallery.remove(f"new {number}"), CHANGES),
        "shortlist_ms": fastest_ms(lambda number: gallery.shortlist(images[number : number + 1]), len(images)),
        "query_ms": fastest_ms(lambda number: gallery.search(images[number : number + 1]), len(images)),
        "kept_of_exact": float(np.mean([len(one & set(row)) / SHORTLIST for one, row in zip(exact, listed, strict=True)])),
        "recall": float(np.mean([label in row for label, row in zip(labels, listed, strict=True)])),
        "exact_recall": float(np.mean([label in row for label, row in zip(labels, exact, strict=True)])),
        **json.loads(told),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="omniglot")
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1_000, 10_000, 100_000], help="numbers of classes, rising")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="keep the gallery here")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    names, images = drawings(wanted.data)
    what = f"one image a class: {wanted.data}, turned and warped; model {wanted.model}"
    known = json.loads(wanted.out.read_text("utf-8")) if wanted.out.exists() else {}
    rows = {row["classes"]: row for row in known.get("rows", []) if known["what"] == what}
    with tempfile.TemporaryDirectory() as temporary:
        folder = wanted.folder or Path(temporary) / "gallery"
        gallery = Gallery(folder) if folder.exists() else Gallery.create(folder, wanted.model)
        for size in wanted.sizes:
            built = grow(gallery, names, images, size)
            built = min(built, rows.get(size, {}).get("build_ms_per_class", np.inf))  # nothing to add in a second call
            rows[size] = {"build_ms_per_class": built} | measure(gallery, *ask(names, images, size, wanted.queries))
            print(json.dumps(rows[size]), flush=True)
    document = {"what": what, "machine": machine(resolve_device("cpu")), "rows": [rows[size] for size in sorted(rows)]}
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
