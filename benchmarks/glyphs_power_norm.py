"""Does power normalisation help on glyphs, at one budget? Trains each norm with several seeds and compares on test classes.

    python benchmarks/glyphs_power_norm.py --out results/glyphs-power-norm.json

Every model sees the same training episodes for the same seed and is judged on the same test episodes. Nothing is selected
on the test classes.
"""

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import sosn
from sosn.evaluation import Evaluation, compare, evaluate, mean_ci95
from sosn.memory import keep_freed_memory
from sosn.recipe import load_recipe, override
from sosn.training import train
from sosn.training.loop import open_split

RECIPE = "glyphs-5w1s"


def run(norm: str, seed: int, overrides: list[str]) -> Evaluation:
    """Train one model and evaluate it on 600 test episodes."""
    keep_freed_memory()
    recipe = override(load_recipe(RECIPE), [*overrides, f"power_norm={norm}", f"seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        method = train(recipe, Path(folder) / "run").method
    bank = open_split(recipe, "test").to(method.device)
    return evaluate(method, bank, recipe.val_way, recipe.val_shot, 15, 600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norms", nargs="+", default=["sigme", "asinhe", "none"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("overrides", nargs="*", default=[])
    wanted = parser.parse_args()
    jobs = [(norm, seed, wanted.overrides) for norm in wanted.norms for seed in wanted.seeds]
    with ProcessPoolExecutor(wanted.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = dict(zip([job[:2] for job in jobs], pool.map(run, *zip(*jobs, strict=True)), strict=True))
    rows: list[dict[str, Any]] = []
    for norm in wanted.norms:
        own = [results[norm, seed] for seed in wanted.seeds]
        mean, half = mean_ci95(torch.tensor([value for result in own for value in result.per_episode]))
        row: dict[str, Any] = {"norm": norm, "accuracy": mean, "ci95": half, "by_seed": [result.accuracy for result in own]}
        if norm != wanted.norms[0]:
            pairs = [compare(results[wanted.norms[0], seed], results[norm, seed]) for seed in wanted.seeds]
            row["first_minus_this"] = [pair.difference for pair in pairs]
            row["p_values"] = [pair.p_value for pair in pairs]
        rows.append(row)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    steps = override(load_recipe(RECIPE), wanted.overrides).training.steps
    document = {
        "what": "5-way 1-shot on glyphs test classes (synthetic), 600 episodes, running statistics",
        "recipe": RECIPE, "overrides": wanted.overrides, "steps": steps, "seeds": wanted.seeds, "machine": machine,
        "versions": {"sosn": sosn.__version__, "torch": torch.__version__}, "rows": rows,
    }  # fmt: skip
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=2) + "\n")
    for row in rows:
        print(f"{row['norm']:10} {100 * row['accuracy']:.2f} ± {100 * row['ci95']:.2f}", row.get("p_values", ""))


if __name__ == "__main__":
    main()
