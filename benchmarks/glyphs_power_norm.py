"""Compare power norms on glyphs at one budget: train each with several seeds and evaluate on test classes.

    python benchmarks/glyphs_power_norm.py --out results/glyphs-power-norm.json

A seed changes the alphabets, the weights and the episodes. Rows have the accuracy for each seed, for tests over seeds. For one
seed, all norms have the same training and test episodes, and nothing is selected on the test episodes. The default recipe was
tuned on seed 0, so the default seeds exclude it.
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
from sosn.evaluation.protocol import Evaluation, compare, evaluate
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.training import train
from sosn.training.setup import open_split
from sosn.util.device import machine

RECIPE = "glyphs-5w1s"


def run(norm: str, seed: int, overrides: list[str]) -> Evaluation:
    """Train one model and evaluate it on 600 test episodes."""
    recipe = override(load_recipe(RECIPE), [*overrides, f"power_norm={norm}", f"seed={seed}", f"data.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        method = train(recipe, Path(folder) / "run").method
    bank = open_split(recipe, "test").to(method.device)
    return evaluate(method, bank, recipe.val_way, recipe.val_shot, 15, 600)


def rows(results: dict[tuple[str, int], Evaluation], norms: list[str], seeds: list[int]) -> list[dict[str, Any]]:
    """Return a row for each norm: accuracy by seed, and the first norm's lead by seed, with p-values over episodes."""
    table: list[dict[str, Any]] = []
    for norm in norms:
        table.append({"norm": norm, "by_seed": [results[norm, seed].accuracy for seed in seeds]})
        if norm != norms[0]:
            pairs = [compare(results[norms[0], seed], results[norm, seed]) for seed in seeds]
            table[-1] |= {"first_minus_this": [p.difference for p in pairs], "p_values": [p.p_value for p in pairs]}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norms", nargs="+", default=["sigme", "asinhe", "none"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(100, 112)))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("overrides", nargs="*", default=[])
    wanted = parser.parse_args()
    jobs = [(norm, seed, wanted.overrides) for norm in wanted.norms for seed in wanted.seeds]
    with ProcessPoolExecutor(wanted.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = dict(zip([job[:2] for job in jobs], pool.map(run, *zip(*jobs, strict=True)), strict=True))
    document = {
        "what": "5-way 1-shot on glyphs test classes (synthetic), 600 episodes, running statistics",
        "recipe": override(load_recipe(RECIPE), wanted.overrides).to_table(),
        "seeds": wanted.seeds,
        "machine": machine(),
        "versions": {"sosn": sosn.__version__, "torch": torch.__version__},
        "rows": rows(results, wanted.norms, wanted.seeds),
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=2) + "\n")
    for row in document["rows"]:
        print(row)


if __name__ == "__main__":
    main()
