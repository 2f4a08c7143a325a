"""Measure the gain of test-time augmentation: features of smaller, larger and rotated versions of an image.

    python benchmarks/test_time.py mini-imagenet --settings scales=2 turns=2 --sizes 5,1,15,150 --out results/test-time.json

A trained model is evaluated with each setting (scales, turns and mirror; separate several with commas: scales=2,turns=1) on the
same episodes of its validation classes, with a seed that is not used for reported figures. Differences are paired, to the model
without scales and turns.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import sosn
from sosn.checkpoint.registry import load_with_recipe
from sosn.errors import UsageError
from sosn.evaluation.protocol import compare, evaluate
from sosn.method.test_time import TestTimeAugmentation
from sosn.training.setup import open_split
from sosn.util.device import machine, resolve_device
from sosn.util.typed import annotations, check_options, parse

SEED = 7


def read_setting(text: str) -> dict[str, Any]:
    """Parse options of TestTimeAugmentation, such as scales=2,turns=1. Refuses others."""
    pairs = (word.partition("=")[::2] for word in text.split(",") if word)
    return check_options({key: parse(value) for key, value in pairs}, annotations(TestTimeAugmentation), "--settings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--settings", nargs="+", default=["scales=2", "turns=2"])
    parser.add_argument("--sizes", nargs="+", default=["5,1,15,600"], help="way,shot,queries a class,episodes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    try:
        settings = {text: read_setting(text) for text in ("", *wanted.settings)}
    except UsageError as error:
        parser.error(str(error))
    device = resolve_device(wanted.device)
    method, recipe = load_with_recipe(wanted.model)
    method.to(device)
    plain = replace(method.test_time, scales=0, turns=0)
    bank = open_split(recipe, "val").to(device)
    rows: list[dict[str, Any]] = []
    for way, shot, query, episodes in (map(int, text.split(",")) for text in wanted.sizes):
        base = None
        for setting, options in settings.items():
            found = evaluate(method, bank, way, shot, query, episodes, SEED, test_time=replace(plain, **options))
            base = base or found
            gain = compare(found, base)
            rows.append({"setting": setting, **found.to_json(), "difference": gain.difference, "ci95_difference": gain.ci95})
            print(f"{way}w{shot}s, {setting or 'neither'}: {found} ({100 * gain.difference:+.2f})", flush=True)
            document = {"model": wanted.model, "split": "val", "machine": machine(device), "torch": torch.__version__}
            wanted.out.parent.mkdir(parents=True, exist_ok=True)
            wanted.out.write_text(json.dumps(document | {"sosn": sosn.__version__, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
