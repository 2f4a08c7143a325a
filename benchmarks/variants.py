"""Train variants of a recipe one after the other, and write the accuracy of each on validation classes.

    python benchmarks/variants.py omniglot-20w1s variants.txt --out results/variants-omniglot.json --sizes 20,1,5,100 5,1,15,400

A line of the file is a variant: its name, then key=value words that change the recipe. start=@NAME takes the weights of an
earlier variant. Accuracy is measured on validation episodes of a seed that was not used for selection, for each of --sizes
(way, shot, queries per class, episodes), with the last weights unless a line has every=STEPS. Variants whose figures are in
--out are not run again; interrupted ones continue.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from sosn.errors import SosnError
from sosn.evaluation.protocol import evaluate
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.training import train
from sosn.training.run import Run
from sosn.training.setup import open_split
from sosn.util.device import machine, resolve_device
from sosn.util.files import write_atomically

SEED = 7


def run(recipe_name: str, words: list[str], folder: Path, sizes: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    """Train one variant; return the seconds of training, the last loss, and its figures."""
    recipe = override(load_recipe(recipe_name), words)
    if not any(word.startswith(("every=", "validation.every=")) for word in words):
        recipe = override(recipe, [f"every={recipe.training.steps}"])
    result = train(recipe, folder, resume=Run(folder).exists)
    bank = open_split(recipe, "val").to(resolve_device(recipe.training.device))
    figures = [evaluate(result.method, bank, *size, SEED).to_json() for size in sizes]
    return {
        "recipe": recipe.to_table(),  # resolved, because the recipe may change later
        "seconds": result.seconds,
        "loss": [line["loss"] for line in Run(folder).history() if "loss" in line][-1],
        "figures": figures,
    }


def sizes_of(text: str) -> tuple[int, int, int, int]:
    """Parse way, shot, queries and episodes, such as 5,1,15,600."""
    way, shot, query, episodes = (int(one) for one in text.split(","))
    return way, shot, query, episodes


def measured(path: Path, recipe: str) -> list[dict[str, Any]]:
    """Return the variants with figures in a file of results. Refuses a file of another recipe or machine."""
    if not path.exists():
        return []
    document = json.loads(path.read_text("utf-8"))
    for key, wanted in (("recipe", recipe), ("machine", machine())):
        if document[key] != wanted:
            raise SystemExit(f"{str(path)!r} has variants with {key} {document[key]!r}, not {wanted!r}: give another --out")
    return [row for row in document["rows"] if "figures" in row]


def has_sizes(row: dict[str, Any], sizes: list[tuple[int, int, int, int]]) -> bool:
    """Return whether a variant has figures for these sizes."""
    return [(one["way"], one["shot"], one["query"], one["episodes"]) for one in row["figures"]] == sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("variants", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/variants"))
    parser.add_argument("--sizes", nargs="+", default=["5,1,15,600"])
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    sizes = [sizes_of(text) for text in wanted.sizes]
    before = {(row["variant"], *row["words"]): row for row in measured(wanted.out, wanted.recipe)}
    rows: list[dict[str, Any]] = []
    for line in wanted.variants.read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, *words = line.split()
        row: dict[str, Any] = {"variant": name, "words": words}
        earlier = before.pop((name, *words), None)
        if earlier and has_sizes(earlier, sizes):
            rows.append(earlier)
            continue
        try:
            there = [word.replace("start=@", f"start={wanted.runs.absolute()}/") for word in words]
            row |= run(wanted.recipe, there, wanted.runs / name, sizes)
        except SosnError as error:  # the others continue
            row["error"] = str(error)
        rows.append(earlier if earlier and "error" in row else row)
        kept = [*rows, *before.values()]  # rows of later lines, and of removed lines
        document = {"recipe": wanted.recipe, "split": "val", "seed": SEED, "machine": machine(), "rows": kept}
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(wanted.out, (json.dumps(document, indent=1) + "\n").encode())
        figures = ", ".join(f"{one['way']}w{one['shot']}s {100 * one['accuracy']:.2f}" for one in row.get("figures", []))
        print(f"{name}: {figures or row.get('error')}", flush=True)


if __name__ == "__main__":
    main()
