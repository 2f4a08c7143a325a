"""Calibrate models on their validation classes, and write the result where the classifier reads it.

    python benchmarks/calibrate_model.py glyphs             # a shipped model: into its card
    python benchmarks/calibrate_model.py runs/my-photos     # a run: into its folder, as calibration.json
    python benchmarks/calibrate_model.py glyphs omniglot mini-imagenet --episodes 3000 --device cuda

Temperatures and thresholds are fitted on 200 episodes of 5 classes (as many queries at every other size) and evaluated on as
many others: expected calibration error, AUROC of known against unknown classes, and the shares that the 5% threshold rejects.
With more episodes, a threshold comes closer to the share that it may reject. 200 take minutes on a CPU, 3,000 seconds on a GPU.
"""

import argparse
import json
from dataclasses import replace

from sosn.checkpoint.registry import load_with_recipe, model_path, shipped_models
from sosn.evaluation.calibration import CALIBRATION_FILE, calibration_of, measure
from sosn.training.setup import open_split
from sosn.util.device import resolve_device
from sosn.util.files import write_atomically


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="model")
    parser.add_argument("--ways", nargs="+", type=int, default=[1, 2, 5, 20])
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--query", type=int, default=5, help="queries of each class of an episode")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--add", action="store_true", help="keep earlier measurements of other sizes")
    wanted = parser.parse_args()
    for model in wanted.models:
        calibrate(model, wanted)


def calibrate(model: str, wanted: argparse.Namespace) -> None:
    """Calibrate one model and write the result."""
    method, recipe = load_with_recipe(model)
    device = resolve_device(wanted.device)
    bank = open_split(recipe, "val").to(device)
    sizes = (wanted.ways, wanted.shots, wanted.query, wanted.episodes)
    calibration = measure(method.to(device), bank, "val", recipe.data.name, *sizes, log=lambda line: print(model, line))
    before = calibration_of(model) if wanted.add else None
    if before is not None:
        measured = {(one.way, one.shot): one for one in (*before.sizes, *calibration.sizes)}
        calibration = replace(calibration, sizes=tuple(one for _, one in sorted(measured.items())))
    path = model_path(model)
    if model in shipped_models():
        target = path.with_suffix(".json")
        document = json.loads(target.read_text("utf-8")) | {"calibration": calibration.to_json()}
    else:
        target, document = path.parent / CALIBRATION_FILE, calibration.to_json()
    write_atomically(target, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    print(f"written to {target}")


if __name__ == "__main__":
    main()
