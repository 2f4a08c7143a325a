"""Measure how sure a model may be, on its own validation classes, and write that where the classifier looks for it.

    python benchmarks/calibrate_model.py glyphs             # a shipped model: into its card
    python benchmarks/calibrate_model.py runs/my-photos     # a run: into its folder, as calibration.json

Temperatures and thresholds are fitted on 200 episodes of 5 classes (as many queries at every other size) and judged on as many
others: expected calibration error, AUROC of known against unknown classes, and the shares that a threshold for 5% refuses.
"""

import argparse
import json
from pathlib import Path

from sosn.confidence import CALIBRATION_FILE, measure
from sosn.device import resolve_device
from sosn.models import load_with_recipe, model_path, shipped_models
from sosn.training.setup import open_split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ways", nargs="+", type=int, default=[1, 5, 20])
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--device", default="auto")
    wanted = parser.parse_args()
    method, recipe = load_with_recipe(wanted.model)
    device = resolve_device(wanted.device)
    bank = open_split(recipe, "val").to(device)
    calibration = measure(
        method.to(device), bank, "val", recipe.data.name, wanted.ways, wanted.shots, episodes=wanted.episodes, say=print
    )
    path = model_path(wanted.model)
    if wanted.model in shipped_models():
        target = path.with_suffix(".json")
        document = json.loads(target.read_text("utf-8")) | {"calibration": calibration.to_json()}
    else:
        target, document = path.parent / CALIBRATION_FILE, calibration.to_json()
    Path(target).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(f"written to {target}")


if __name__ == "__main__":
    main()
