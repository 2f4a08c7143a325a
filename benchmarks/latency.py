"""Measure the time to classify an image with PyTorch and with ONNX Runtime, and the time from a cold start.

    python benchmarks/latency.py --models mini-imagenet omniglot --out results/latency-cpu.json

One image (random pixels of the model's size, as an array) is compared with 5 classes of one image each; medians after a
warm-up. A cold start is a new process that imports sosn, fits the classifier and predicts once. ONNX Runtime does the same
work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sosn

CALLS, WARM = 50, 5
COLD = """
import numpy as np, sosn
images = np.random.default_rng(0).integers(0, 256, (6, {size}, {size}, 3), dtype=np.uint8)
sosn.FewShotClassifier({model!r}).fit(list(images[:5]), list("abcde")).predict([images[5]])
"""


def median_ms(call: Callable[[], object]) -> float:
    """Return the median milliseconds of a call, after a warm-up."""
    seconds = []
    for number in range(WARM + CALLS):
        began = time.perf_counter()
        call()
        if number >= WARM:
            seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds)


def cold_seconds(model: str, size: int) -> float:
    """Return the seconds that a new process takes to answer, the median of three."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", COLD.format(model=model, size=size)], check=True)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def onnx_ms(model: str, support: np.ndarray, query: np.ndarray) -> float:
    """Return the milliseconds for one query image with ONNX Runtime, with precomputed class descriptors."""
    import onnxruntime

    from sosn.classify.onnx import export_onnx

    with tempfile.TemporaryDirectory() as folder:
        export_onnx(sosn.load(model), Path(folder) / "onnx", model)
        sessions = [
            onnxruntime.InferenceSession(Path(folder) / "onnx" / name, providers=["CPUExecutionProvider"])
            for name in ("describe.onnx", "similarity.onnx")
        ]
    describe, similarity = sessions
    known = describe.run(None, {"images": support[:, None]})[0]

    def answer() -> Any:
        described = describe.run(None, {"images": query[None, None]})[0]
        return similarity.run(None, {"support": known, "query": described})[0].argmax()

    return median_ms(answer)


def measure(model: str) -> dict[str, Any]:
    """Return the row of one shipped model."""
    fitted = sosn.load(model)
    size, channels = fitted.preprocessing.source, fitted.preprocessing.channels
    images = np.random.default_rng(0).integers(0, 256, (6, size, size, 3), dtype=np.uint8)
    classifier = sosn.FewShotClassifier(model).fit(list(images[:5]), list("abcde"))
    row: dict[str, Any] = {"model": model, "size": size, "ms": median_ms(lambda: classifier.predict([images[5]]))}
    if find_spec("onnxruntime") and find_spec("onnxscript"):
        floats = images.transpose(0, 3, 1, 2)[:, :channels].astype(np.float32) / 255
        row["onnx_ms"] = onnx_ms(model, floats[:5], floats[5])
    row["cold_seconds"] = cold_seconds(model, size)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mini-imagenet", "omniglot", "glyphs"])
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    document = {
        "what": "one picture against 5 classes",
        "machine": f"CPU, {torch.get_num_threads()} threads",
        "load_before": os.getloadavg()[0],
        "versions": {"sosn": sosn.__version__, "torch": torch.__version__},
        "rows": [measure(model) for model in wanted.models],
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    print(json.dumps(document["rows"], indent=2))


if __name__ == "__main__":
    main()
