"""Time a training step of recipes with the engine, with plain layers, and with plain layers as one CUDA graph.

    python benchmarks/steps.py mini-imagenet-resnet12-pretrain mini-imagenet-best-pretrain --out results/steps-h200.json

A step is that of `sosn train`, on the images of the recipe, which must be prepared. The engines take turns, several times. On a
GPU the engine's step is a CUDA graph, so compare it with the graph of plain layers to see the gain of its kernels. key=value
words, such as device=cpu, apply to every recipe. Initial weights are random, also those of second stages.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import sosn
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.training import Silent
from sosn.training.cuda_graph import FREE_STEPS, CapturedStep
from sosn.training.run import Run
from sosn.training.trainer import Trainer
from sosn.util.device import machine

ENGINES = ("auto", "plain")
GRAPH = "plain, captured"


def measure(name: str, words: list[str], rounds: int, steps: int) -> dict[str, Any]:
    """Return the milliseconds per step of a recipe by engine, one figure per round."""
    recipes = {engine: override(load_recipe(name), [*words, "start=", f"engine={engine}"]) for engine in ENGINES}
    trainers = {engine: Trainer(recipe, Run(Path()), Silent()) for engine, recipe in recipes.items()}
    if isinstance(trainers["auto"].learn, CapturedStep):
        trainers[GRAPH] = Trainer(recipes["plain"], Run(Path()), Silent())
        trainers[GRAPH].learn = CapturedStep(trainers[GRAPH].take)
    times: dict[str, list[float]] = {engine: [] for engine in trainers}
    for trainer in trainers.values():
        for _ in range(FREE_STEPS + 2):  # until a step is captured
            trainer.advance().item()
    for _ in range(rounds):
        for engine, trainer in trainers.items():
            began = time.monotonic()
            for _ in range(steps):
                loss = trainer.advance()
            loss.item()
            times[engine].append(1e3 * (time.monotonic() - began) / steps)
    device = trainers["auto"].fabric.device
    for trainer in trainers.values():
        trainer.source.close()
    return {"recipe": name, "words": words, "machine": machine(device), "steps": steps, "ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", metavar="recipe", help="recipe name, or key=value for all recipes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps per round")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    words = [word for word in wanted.recipes if "=" in word]
    if len(words) == len(wanted.recipes) or wanted.rounds < 1 or wanted.steps < 1:
        parser.error("give at least one recipe, one round and one step")
    if any(word.partition("=")[0] in ("start", "engine", "training.start", "training.engine") for word in words):
        parser.error("start and engine cannot be set: initial weights are random, and all engines are timed")
    rows: list[dict[str, Any]] = []
    for name in wanted.recipes:
        if name in words:
            continue
        rows.append(measure(name, words, wanted.rounds, wanted.steps))
        document = {"sosn": sosn.__version__, "torch": torch.__version__, "rows": rows}
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        wanted.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        medians = (f"{engine} {statistics.median(times):.2f} ms" for engine, times in rows[-1]["ms"].items())
        print(f"{name}: {'; '.join(medians)}", flush=True)


if __name__ == "__main__":
    main()
