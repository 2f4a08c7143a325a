"""Evaluate shipped models with further protocols, and write the figures to their cards.

    python benchmarks/card_figures.py omniglot omniglot-5shot --split test --words "" all_rotations=true \
        --sizes 5,1,1 5,5,5 20,1,1 20,5,2 --episodes 1000
    python benchmarks/card_figures.py mini-imagenet mini-imagenet-5shot --sizes 5,1,15 5,5,15

Each size is evaluated with each of --words for `sosn eval` ("" is none; separate several with commas), with the shipped
weights. A figure replaces an earlier one of the same size, split and words. Cards are written after every figure.
"""

import argparse
import json

import torch

import sosn
from sosn.checkpoint.registry import model_card, model_path
from sosn.evaluation.model import evaluate_model
from sosn.util.device import machine
from sosn.util.files import write_atomically

WHICH = ("split", "words", "way", "shot", "query")  # keys that identify a figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="model")
    parser.add_argument("--split", default="val", choices=["val", "test"])
    parser.add_argument("--sizes", nargs="+", required=True, help="way,shot,queries a class")
    parser.add_argument("--words", nargs="+", default=[""], help="key=value,… for sosn eval")
    parser.add_argument("--episodes", type=int, default=600)
    wanted = parser.parse_args()
    for model in wanted.models:
        for words in wanted.words:
            for size in wanted.sizes:
                add_figure(model, wanted.split, words, size, wanted.episodes)


def add_figure(model: str, split: str, words: str, size: str, episodes: int) -> None:
    """Measure one figure and add it to the card."""
    card = model_card(model)
    numbers = dict(zip(("way", "shot", "query"), map(int, size.split(",")), strict=True)) | {"episodes": episodes}
    overrides = [word for word in words.split(",") if word]
    result, _ = evaluate_model(model, [*overrides, f"split={split}", *(f"{key}={value}" for key, value in numbers.items())])
    figure = {"split": split, "words": overrides, **result.to_json()}
    figure["measured_with"] = {"machine": machine(), "sosn": sosn.__version__, "torch": torch.__version__}
    others = [one for one in card.get("figures", []) if any(one[key] != figure[key] for key in WHICH)]
    calibration = {"calibration": card.pop("calibration")} if "calibration" in card else {}  # it stays last
    document = card | {"figures": [*others, figure]} | calibration
    write_atomically(
        model_path(model).with_suffix(".json"), (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    )
    print(f"{model} {split} {size} {words}: {result}", flush=True)


if __name__ == "__main__":
    main()
