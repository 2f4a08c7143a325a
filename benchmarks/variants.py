"""Train variants of a recipe one after the other, and write what each reaches on validation classes.

    python benchmarks/variants.py omniglot-20w1s variants.txt --out results/variants-omniglot.json --sizes 20,1,5,100 5,1,15,400

A line of the file is a variant: its name, then key=value words over the recipe. start=@NAME takes the weights of an earlier
variant. Figures are of val episodes of a seed that chose nothing (way, shot, queries a class and episodes of each --sizes), and
of the last weights unless a line has every=STEPS. Variants whose figures --out holds already are not run again; what was
interrupted goes on.
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
    """One variant: seconds of training, the last loss, and its figures."""
    recipe = override(load_recipe(recipe_name), words)
    if not any(word.startswith(("every=", "validation.every=")) for word in words):
        recipe = override(recipe, [f"every={recipe.training.steps}"])
    result = train(recipe, folder, resume=Run(folder).exists)
    bank = open_split(recipe, "val").to(resolve_device(recipe.training.device))
    figures = [evaluate(result.method, bank, *size, SEED).to_json() for size in sizes]
    return {
        "recipe": recipe.to_table(),  # the words are over one that may change
        "seconds": result.seconds,
        "loss": [line["loss"] for line in Run(folder).history() if "loss" in line][-1],
        "figures": figures,
    }


def sizes_of(text: str) -> tuple[int, int, int, int]:
    """Way, shot, queries and episodes, as in 5,1,15,600."""
    way, shot, query, episodes = (int(one) for one in text.split(","))
    return way, shot, query, episodes


def measured(path: Path, recipe: str) -> list[dict[str, Any]]:
    """Variants that a file of results has figures of; a file of another recipe or machine is refused."""
    if not path.exists():
        return []
    told = json.loads(path.read_text("utf-8"))
    for key, wanted in (("recipe", recipe), ("machine", machine())):
        if told[key] != wanted:
            raise SystemExit(f"{str(path)!r} holds variants with {key} {told[key]!r}, not {wanted!r}: give another --out")
    return [row for row in told["rows"] if "figures" in row]


def has_sizes(row: dict[str, Any], sizes: list[tuple[int, int, int, int]]) -> bool:
    """Whether a variant has the figures that are wanted."""
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
        told: dict[str, Any] = {"variant": name, "words": words}
        earlier = before.pop((name, *words), None)
        if earlier and has_sizes(earlier, sizes):
            rows.append(earlier)
            continue
        try:
            there = [word.replace("start=@", f"start={wanted.runs.absolute()}/") for word in words]
            told |= run(wanted.recipe, there, wanted.runs / name, sizes)
        except SosnError as error:  # the others go on
            told["error"] = str(error)
        rows.append(earlier if earlier and "error" in told else told)
        kept = [*rows, *before.values()]  # those of later lines, and of lines that are no more
        document = {"recipe": wanted.recipe, "split": "val", "seed": SEED, "machine": machine(), "rows": kept}
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(wanted.out, (json.dumps(document, indent=1) + "\n").encode())
        shown = ", ".join(f"{one['way']}w{one['shot']}s {100 * one['accuracy']:.2f}" for one in told.get("figures", []))
        print(f"{name}: {shown or told.get('error')}", flush=True)


if __name__ == "__main__":
    main()
