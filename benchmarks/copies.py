"""What do copies of an image bring, smaller, larger or otherwise changed a little, whose features count beside its own?

    python benchmarks/copies.py omniglot --settings scales=2 affine=0.1 --sizes 20,1,1,400 --out results/copies-omniglot.json

A trained model is judged with each setting (one option, or several with a comma: scales=2,mirror=false) on the same episodes of
its validation classes, of a seed that reports nothing; differences are to neither scales nor affine, episode by episode.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import sosn
from sosn.device import machine, resolve_device
from sosn.evaluation import compare, evaluate
from sosn.method import SoSN
from sosn.models import load_with_recipe
from sosn.recipe import override
from sosn.training.setup import open_split

SEED = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--settings", nargs="+", default=["scales=1", "scales=2", "affine=0.15"])
    parser.add_argument("--sizes", nargs="+", default=["5,1,15,600"], help="way,shot,queries a class,episodes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    device = resolve_device(wanted.device)
    method, recipe = load_with_recipe(wanted.model)
    assert isinstance(method, SoSN)
    bank = open_split(recipe, "val").to(device)
    method.to(device)
    sizes = [tuple(int(one) for one in size.split(",")) for size in wanted.sizes]
    rows: list[dict[str, Any]] = []
    for size in sizes:
        base = None
        for setting in ("", *wanted.settings):
            words = [word for word in setting.split(",") if word]
            options = override(recipe, ["scales=0", "affine=0", *words]).model.options
            method.mirror, method.scales, method.affine = (options[name] for name in ("mirror", "scales", "affine"))
            found = evaluate(method, bank, *size, seed=SEED)
            base = base or found
            gain = compare(found, base)
            rows.append({"setting": setting, **found.to_json(), "difference": gain.difference, "ci95_difference": gain.ci95})
            print(f"{size[0]}w{size[1]}s, {setting or 'neither'}: {found} ({100 * gain.difference:+.2f})", flush=True)
            document = {"model": wanted.model, "split": "val", "machine": machine(device), "torch": torch.__version__}
            wanted.out.parent.mkdir(parents=True, exist_ok=True)
            wanted.out.write_text(json.dumps(document | {"sosn": sosn.__version__, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
