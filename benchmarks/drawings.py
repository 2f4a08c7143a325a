"""Measure the accuracy on drawings by anybody: other pens, papers, lights and inks, before and after their normalisation.

    python benchmarks/drawings.py --out results/drawings.json

FewShotClassifier learns six symbols from one drawing each, made with Pillow at 200×200, and answers to five others of each. It
also solves 5-way 1-shot tasks of Omniglot's test classes, from files of 105×105 as they are and on grey paper. "as_is" leaves
images unchanged; "auto" is the default. With --episodes, shipped models also score original files of 105×105 by
`model(episode)`, and the prepared bank by `evaluate`, which gave the figures of their cards.
"""

import argparse
import json
import math
import multiprocessing
import random
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw

import sosn
from sosn.errors import SosnWarning
from sosn.evaluation.calibration import calibration_error
from sosn.evaluation.protocol import draw_indices, evaluate, mean_ci95
from sosn.method.base import in_order
from sosn.util.device import machine

Array = np.ndarray[Any, Any]
Stroke = list[tuple[float, float]]
SIDE, FINE, ASKED = 200, 3, 5  # pixels; factor at which strokes are drawn; queries of a class
POLARITIES: tuple[Literal["as_is", "auto"], ...] = ("as_is", "auto")


def arc(x: float, y: float, radius: float, start: float, end: float, high: float = 1.0) -> Stroke:
    """Points of an arc about (x, y), from one angle to another in degrees."""
    turns = [math.radians(start + (end - start) * step / 24) for step in range(25)]
    return [(x + radius * math.cos(turn), y + high * radius * math.sin(turn)) for turn in turns]


SYMBOLS: dict[str, dict[str, list[Stroke]]] = {  # strokes in a square from −1 to 1
    "signs": {
        "arrow": [[(-0.8, 0), (0.8, 0)], [(0.3, -0.5), (0.8, 0), (0.3, 0.5)]],
        "heart": [[(0, 0.8), (-0.8, -0.1), *arc(-0.4, -0.3, 0.4, 160, 350), *arc(0.4, -0.3, 0.4, 190, 380), (0, 0.8)]],
        "lightning": [[(0.3, -0.9), (-0.4, 0.1), (0.3, 0), (-0.3, 0.9)]],
        "spiral": [[(0.08 * k**0.9 * math.cos(k / 2), 0.08 * k**0.9 * math.sin(k / 2)) for k in range(1, 26)]],
        "house": [[(-0.7, 0.8), (-0.7, -0.1), (0, -0.8), (0.7, -0.1), (0.7, 0.8), (-0.7, 0.8)]],
        "moon": [arc(0, 0, 0.8, 60, 300), arc(0.4, 0, 0.7, 90, 270)],
    },
    "digits": {
        "2": [[*arc(0, -0.4, 0.5, 180, 390), (-0.55, 0.8), (0.6, 0.8)]],
        "3": [[*arc(0, -0.42, 0.42, 200, 450), *arc(0, 0.42, 0.45, -90, 160)]],
        "4": [[(0.3, 0.85), (0.3, -0.85), (-0.6, 0.3), (0.7, 0.3)]],
        "5": [[(0.5, -0.8), (-0.4, -0.8), (-0.45, -0.1), *arc(0, 0.3, 0.5, -130, 140)]],
        "7": [[(-0.6, -0.8), (0.6, -0.8), (-0.1, 0.85)]],
        "9": [[*arc(0, -0.35, 0.45, 0, -360), (0.4, 0.85)]],
    },
    "greek": {
        "gamma": [[(-0.6, -0.8), (0, 0.2), (0.6, -0.8)], arc(0, 0.5, 0.3, -90, 270)],
        "sigma": [[(0.6, -0.8), (-0.6, -0.8), (0.1, 0), (-0.6, 0.8), (0.6, 0.8)]],
        "phi": [arc(0, 0, 0.5, 0, 360), [(0, -0.9), (0, 0.9)]],
        "psi": [arc(0, -0.3, 0.6, 0, 180, 1.2), [(0, -0.9), (0, 0.9)]],
        "omega": [[(-0.7, 0.75), (-0.3, 0.75), *arc(0, -0.05, 0.65, 120, 420), (0.3, 0.75), (0.7, 0.75)]],
        "xi": [[(-0.6, -0.75), (0.6, -0.75)], [(-0.4, 0), (0.4, 0)], [(-0.6, 0.75), (0.6, 0.75)]],
    },
}  # fmt: skip


def drawn(strokes: list[Stroke], pen: float, rng: random.Random, sizes: tuple[float, float] = (0.5, 0.85)) -> Array:
    """Draw strokes by an unsteady hand, in any place: the share of ink of each pixel (200, 200)."""
    image = Image.new("L", (SIDE * FINE, SIDE * FINE), 0)
    pencil, turn = ImageDraw.Draw(image), math.radians(rng.uniform(-12, 12))
    scale, stretch = rng.uniform(*sizes) * SIDE / 2, rng.uniform(0.9, 1.1)
    room = max(0.0, SIDE / 2 - 1.15 * scale - pen / 2)
    middle = [SIDE / 2 + rng.uniform(-0.8, 0.8) * room for _ in range(2)]
    for stroke in strokes:
        moved = [rng.gauss(0, 0.03) for _ in range(2)]
        points = []
        for x, y in stroke:
            x, y = stretch * (x + moved[0] + rng.gauss(0, 0.015)), y + moved[1] + rng.gauss(0, 0.015)
            across, down = x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)
            points.append((FINE * (middle[0] + scale * across), FINE * (middle[1] + scale * down)))
        pencil.line(points, fill=255, width=round(pen * FINE), joint="curve")
        half = pen * FINE / 2
        for x, y in (points[0], points[-1]):
            pencil.ellipse((x - half, y - half, x + half, y + half), fill=255)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float32)[..., None] / 255


def printed(values: Array) -> Array:
    return np.broadcast_to(values.clip(0, 255).round().astype(np.uint8), (*values.shape[:2], 3)).copy()


def pens(strokes: list[Stroke], rng: random.Random, shown: bool) -> Array:
    return printed(255 * (1 - drawn(strokes, rng.uniform(4, 10), rng)))


def mixed(strokes: list[Stroke], rng: random.Random, shown: bool) -> Array:
    pen, paper = (rng.uniform(3, 12), 255.0) if shown else (rng.uniform(2, 16), rng.uniform(215, 255))
    return printed(paper * (1 - drawn(strokes, pen, rng)))


def sheet(strokes: list[Stroke], rng: random.Random, shown: bool) -> Array:
    """A photographed sheet: warm light that falls off to a side, noise, and ink that is not black."""
    ink = drawn(strokes, rng.uniform(3, 12), rng) * rng.uniform(0.7, 0.9)
    slope = [rng.uniform(-0.3, 0.3) for _ in range(2)]
    y, x = np.mgrid[:SIDE, :SIDE, :1][:2] / SIDE - 0.5
    light = rng.uniform(180, 235) * (1 + slope[0] * x + slope[1] * y) * np.array([1, 0.95, rng.uniform(0.75, 0.95)])
    noise = np.random.default_rng(rng.randrange(2**32)).normal(0, 5, (SIDE, SIDE, 3))
    return printed(light * (1 - ink) + noise)


def coloured(strokes: list[Stroke], rng: random.Random, shown: bool) -> Array:
    colour = np.array(rng.choice(INKS))
    return printed(255 - drawn(strokes, rng.uniform(3, 12), rng) * (255 - colour))


def transparent(strokes: list[Stroke], rng: random.Random, shown: bool) -> Array:
    """Strokes of a drawing program on a transparent image, themselves a little transparent."""
    ink = drawn(strokes, rng.uniform(3, 12), rng) * rng.uniform(0.4, 1)
    return np.concatenate((np.full((SIDE, SIDE, 3), rng.choice(INKS), np.uint8), (255 * ink).round().astype(np.uint8)), -1)


def sizes(strokes: list[Stroke], rng: random.Random, shown: bool) -> Array:
    return printed(rng.uniform(215, 255) * (1 - drawn(strokes, rng.uniform(3, 12), rng, (0.3, 0.95))))


INKS = ((20, 30, 160), (190, 20, 30), (10, 110, 50), (120, 40, 140), (230, 120, 0), (0, 0, 0))
LOOKS: dict[str, Callable[[list[Stroke], random.Random, bool], Array]] = {
    "pens of 4 to 10 px": pens, "pens of 2 to 16 px, grey paper": mixed, "photographed sheets": sheet,
    "coloured ink": coloured, "transparent strokes": transparent, "small and large, anywhere": sizes,
}  # fmt: skip
PAPERS = {f"Omniglot on paper of {paper}": paper for paper in (255, 240, 215)}
Task = tuple[list[Array], list[Array], int]  # support, queries class by class, and queries of a class


def symbol_tasks(look: str, repeats: int) -> Iterator[Task]:
    for name, symbols in SYMBOLS.items():
        for number in range(repeats):
            rng = random.Random(f"{look} {name} {number}")
            shown = [LOOKS[look](strokes, rng, True) for strokes in symbols.values()]
            yield shown, [LOOKS[look](strokes, rng, False) for strokes in symbols.values() for _ in range(ASKED)], ASKED


def omniglot_tasks(paper: int, tasks: int) -> Iterator[Task]:
    sampler = sosn.EpisodeSampler(sosn.open_bank("omniglot", "test", size=105), way=5, shot=1, query=ASKED)
    for number in range(tasks):
        task = sampler.draw(1, sosn.generator("drawings", number))
        sides = [
            (side.float() * paper / 255).round().to(torch.uint8) for side in (task.support[0, :, 0, 0], task.query[0, :, 0])
        ]
        yield list(sides[0].numpy()), list(sides[1].numpy()), ASKED


def measure(tasks: Iterator[Task], model: str, polarity: Literal["as_is", "auto"], device: str) -> dict[str, Any]:
    """Return the accuracy over tasks, the mean probability of wrong answers, and the expected calibration error."""
    right, chances, labels = [], [], []
    chosen = set()
    for shown, asked, each in tasks:
        classifier = sosn.FewShotClassifier(model, polarity=polarity, device=device).fit(shown, list(range(len(shown))))
        chances.append(torch.from_numpy(classifier.predict_proba(asked)))
        labels.append(torch.arange(len(shown)).repeat_interleave(each))
        right.append((chances[-1].argmax(-1) == labels[-1]).double().mean())
        chosen.add(classifier.model_)
    accuracy, half = mean_ci95(torch.stack(right))
    every, answers = torch.cat(chances), torch.cat(labels)
    top, wrong = every.amax(-1), every.argmax(-1) != answers
    return {
        "accuracy": accuracy, "ci95": half, "tasks": len(right), "queries": len(top), "wrong": int(wrong.sum()),
        "sure_when_wrong": float(top[wrong].mean()) if wrong.any() else None,
        "ece": calibration_error(every, answers), "chosen": sorted(chosen),
    }  # fmt: skip


def solve(job: tuple[str, str, Literal["as_is", "auto"], argparse.Namespace]) -> dict[str, Any]:
    """Measure one model on one kind of drawings."""
    model, case, polarity, wanted = job
    warnings.simplefilter("ignore", SosnWarning)
    tasks = omniglot_tasks(PAPERS[case], wanted.tasks) if case in PAPERS else symbol_tasks(case, wanted.repeats)
    figures = measure(tasks, model, polarity, wanted.device)
    print(model, case, polarity, figures, flush=True)
    return figures


def paths(model: str, way: int, query: int, episodes: int, device: str) -> dict[str, Any]:
    """Return the 5-shot accuracy on the prepared bank, and that of model(episode) on the same episodes of original files.

    "rounded" is that of scores which were not put into the order of their logits, so that the first of equal ones wins.
    """
    method = sosn.load(model).to(device).eval()
    prepared, original = (sosn.open_bank("omniglot", "test", size=size) for size in (28, 105))
    bank = evaluate(method, prepared.to(torch.device(device)), way, 5, query, episodes)
    sampler = sosn.EpisodeSampler(original, way, 5, query)
    right: list[list[float]] = [[], []]
    with torch.inference_mode():
        for rows in zip(*draw_indices(sampler, episodes, 0), strict=True):
            task = sampler.episode(*(one.unsqueeze(0) for one in rows)).to(torch.device(device))
            logits = method.logits(task)
            answers = in_order(method.score(logits), logits), method.score(logits)  # the first are those of method(task)
            for column, scores in zip(right, answers, strict=True):
                column.append(float((scores.argmax(-1).cpu() == sampler.labels).double().mean()))
    (accuracy, half), (rounded, _) = (mean_ci95(torch.tensor(column, dtype=torch.float64)) for column in right)
    row = {"model": model, "way": way, "shot": 5, "query": query, "episodes": episodes}
    return row | {
        "prepared": bank.accuracy,
        "prepared_ci95": bank.ci95,
        "original": accuracy,
        "original_ci95": half,
        "rounded": rounded,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["auto", "glyphs"])
    parser.add_argument("--repeats", type=int, default=5, help="tasks of each set of symbols")
    parser.add_argument("--tasks", type=int, default=60, help="tasks of Omniglot; 0 leaves it out")
    parser.add_argument("--episodes", type=int, default=0, help="20-way 5-shot episodes of original files; slow on a CPU")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    warnings.simplefilter("ignore", SosnWarning)
    cases = [*LOOKS, *(PAPERS if wanted.tasks else ())]
    jobs = [(model, case, way, wanted) for model in wanted.models for case in cases for way in POLARITIES]
    if wanted.jobs > 1:
        with ProcessPoolExecutor(wanted.jobs, multiprocessing.get_context("spawn")) as pool:
            found = list(pool.map(solve, jobs))
    else:
        found = [solve(job) for job in jobs]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (model, case, way, _), figures in zip(jobs, found, strict=True):
        rows.setdefault((model, case), {"model": model, "drawings": case})[way] = figures
    sizes_of = [(model, *size) for model in ("omniglot", "omniglot-5shot") for size in ((20, 2),)]
    document: dict[str, Any] = {
        "machine": machine(torch.device(wanted.device)), "sosn": sosn.__version__, "side": SIDE, "asked": ASKED,
        "sets": len(SYMBOLS),
        "rows": list(rows.values()),
        "paths": [paths(*size, wanted.episodes, wanted.device) for size in sizes_of] if wanted.episodes else [],
    }  # fmt: skip
    print(*document["paths"], sep="\n")
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
