"""What do smaller, larger and turned copies of an image bring, whose features count beside its own?

    python benchmarks/copies.py mini-imagenet --settings scales=2 turns=2 --sizes 5,1,15,150 --out results/copies.json

A trained model is judged with each setting (of scales, turns and mirror, several with commas: scales=2,turns=1) on the same
episodes of its validation classes, of a seed that reports nothing; differences are to the model without scales and turns, in
pairs.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import sosn
from sosn.checkpoint.registry import load_with_recipe
from sosn.evaluation.protocol import compare, evaluate
from sosn.method import SoSN
from sosn.recipe.override import override
from sosn.training.setup import open_split
from sosn.util.device import machine, resolve_device

SEED = 7
COPIES = ("mirror", "scales", "turns")  # options that no weight depends on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--settings", nargs="+", default=["scales=2", "turns=2"])
    parser.add_argument("--sizes", nargs="+", default=["5,1,15,600"], help="way,shot,queries a class,episodes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    for word in ",".join(wanted.settings).split(","):
        if word.partition("=")[0] not in COPIES:
            parser.error(f"{word!r} is no setting of copies: give {' or '.join(COPIES)}")
    device = resolve_device(wanted.device)
    method, recipe = load_with_recipe(wanted.model)
    assert isinstance(method, SoSN)
    bank = open_split(recipe, "val").to(device)
    rows: list[dict[str, Any]] = []
    for way, shot, query, episodes in (map(int, text.split(",")) for text in wanted.sizes):
        base = None
        for setting in ("", *wanted.settings):
            words = [word for word in setting.split(",") if word]
            options = override(recipe, ["scales=0", "turns=0", *words]).model.options
            changed = SoSN(**method.config | {name: options[name] for name in COPIES})
            changed.load_state_dict(method.state_dict())
            found = evaluate(changed.to(device), bank, way, shot, query, episodes, SEED)
            base = base or found
            gain = compare(found, base)
            rows.append({"setting": setting, **found.to_json(), "difference": gain.difference, "ci95_difference": gain.ci95})
            print(f"{way}w{shot}s, {setting or 'neither'}: {found} ({100 * gain.difference:+.2f})", flush=True)
            document = {"model": wanted.model, "split": "val", "machine": machine(device), "torch": torch.__version__}
            wanted.out.parent.mkdir(parents=True, exist_ok=True)
            wanted.out.write_text(json.dumps(document | {"sosn": sosn.__version__, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
