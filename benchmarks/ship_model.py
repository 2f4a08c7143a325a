"""Add the model of a run to the package: half-precision weights and a card with measured figures.

    python benchmarks/ship_model.py runs/glyphs-5w1s glyphs --split test

The figures are those of the half-precision weights, on seeded episodes of the given split.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch

import sosn
from sosn.checkpoint.registry import load_with_recipe, model_path, pack
from sosn.checkpoint.storage import shelf
from sosn.evaluation.model import evaluate_model
from sosn.recipe.library import load_recipe
from sosn.util.device import machine
from sosn.util.files import write_atomically

TERMS = {
    "glyphs": "Trained on images that this package generates: use the weights under its licence.",
    "omniglot": "Trained on Omniglot, whose images are under the MIT licence: use the weights under this package's licence.",
    "mini-imagenet": "Trained on images of ImageNet, which are distributed for research and education: use it only for these.",
}
LIMITS = {
    "glyphs": "For dark strokes on a light background, one character per image; not for photos. Trained on synthetic data.",
    "omniglot": "For handwritten characters, dark strokes on a light background, one per image; not for photos.",
    "mini-imagenet": "For photos of objects and animals at 84×84. A network this small is right on about half of 5-way 1-shot "
    "queries: give several images of each class. Its accuracy is on validation classes, on which its recipe was chosen, with "
    "other episodes.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--split", default="val", choices=["val", "test"])
    parser.add_argument("--way", type=int, default=5)
    parser.add_argument("--shot", type=int, default=1)
    parser.add_argument("--query", type=int, default=15)
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--recipe", help="recipe, by name or file, whose title the card gets")
    parser.add_argument("--first", help="recipe, by name or file, of the run that this one started from")
    parser.add_argument("options", nargs="*", default=[], help="key=value words that change the model but not its weights")
    wanted = parser.parse_intermixed_args()
    target = shelf() / f"{wanted.name}.safetensors"
    with tempfile.TemporaryDirectory() as place:  # the shipped model is kept until the new weights are measured
        packed = Path(place) / target.name
        pack(model_path(str(wanted.run)), packed, wanted.options)
        method, recipe = load_with_recipe(str(packed))
        words = [f"{key}={getattr(wanted, key)}" for key in ("split", "way", "shot", "query", "episodes")]
        result, settings = evaluate_model(str(packed), words)
        weights = packed.read_bytes()
    card = {
        "title": load_recipe(wanted.recipe).title if wanted.recipe else recipe.title,
        "data": settings.data,
        "split": settings.split,
        **result.to_json(),
        "measured_with": {"machine": machine(), "sosn": sosn.__version__, "torch": torch.__version__},
        "parameters": method.parameter_count(),
        "bytes": len(weights),
        "recipe": recipe.to_table(),
        **({"first_stage": load_recipe(wanted.first).to_table()} if wanted.first else {}),
        "terms": TERMS[recipe.data.name],
        "limits": LIMITS[recipe.data.name],
    }
    write_atomically(target, weights)
    write_atomically(target.with_suffix(".json"), (json.dumps(card, indent=2, ensure_ascii=False) + "\n").encode())
    print(f"{wanted.name}: {result} on {settings.data} {settings.split}, {len(weights):,} bytes")


if __name__ == "__main__":
    main()
