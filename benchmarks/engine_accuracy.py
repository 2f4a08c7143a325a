"""Compare the accuracy of models trained with the engine and with plain layers, at the same recipe and seed.

    python benchmarks/engine_accuracy.py mini-imagenet-5w1s --seeds 0 1 --out results/engine-accuracy.json steps=1250

Both are evaluated with plain layers on the same validation episodes, so that only training differs. A row of the file is a
recipe with its words, a seed and a machine. A repeated measurement replaces the old row.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import sosn
from sosn.evaluation.protocol import Evaluation, compare, evaluate
from sosn.kernel import engine
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.training import train
from sosn.training.setup import open_split
from sosn.util.device import machine

EPISODES, QUERIES, SEED = 600, 15, 7
ENGINES = ("auto", "plain")


def run(recipe: Recipe) -> tuple[Evaluation, float]:
    """Train a recipe; return its accuracy on validation episodes and the seconds of training."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(recipe, Path(folder) / "run")
    bank = open_split(recipe, "val").to(result.method.device)
    with engine("plain"):
        found = evaluate(result.method, bank, recipe.val_way, recipe.val_shot, QUERIES, EPISODES, seed=SEED)
    return found, result.seconds


def measure(name: str, words: list[str], seed: int) -> dict[str, Any]:
    """Return a row: both accuracies, and their difference with its p-value over episodes."""
    recipes = [override(load_recipe(name), [*words, f"seed={seed}", f"engine={one}"]) for one in ENGINES]
    (ours, quick), (theirs, slow) = (run(recipe) for recipe in recipes)
    difference = compare(ours, theirs)
    return {
        "recipe": name, "words": words, "seed": seed, "machine": machine(), "torch": torch.__version__,
        "sosn": sosn.__version__, "engine": ours.to_json() | {"seconds": quick}, "plain": theirs.to_json() | {"seconds": slow},
        "difference": difference.difference, "ci95": difference.ci95, "p_value": difference.p_value,
    }  # fmt: skip


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["recipe"], row["words"], row["seed"], row["machine"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("words", nargs="*", default=[], help="key=value words that change the recipe")
    wanted = parser.parse_intermixed_args()
    rows = json.loads(wanted.out.read_text("utf-8"))["rows"] if wanted.out.exists() else []
    for seed in wanted.seeds:
        new = measure(wanted.recipe, wanted.words, seed)
        rows = [row for row in rows if _key(row) != _key(new)] + [new]
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        wanted.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n", "utf-8")
        print(f"{wanted.recipe}, seed {seed}: {100 * new['difference']:+.2f} ± {100 * new['ci95']:.2f} points", flush=True)


if __name__ == "__main__":
    main()
