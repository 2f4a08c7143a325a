"""Export a model to ONNX: one graph computes descriptors, one compares them. Both are checked against PyTorch."""

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sosn.errors import SosnError, UsageError
from sosn.evaluation.calibration import Calibration
from sosn.kernel import engine
from sosn.method.base import Method
from sosn.util.files import write_atomically
from sosn.util.seeding import generator

DESCRIBE_FILE, SIMILARITY_FILE, ABOUT_FILE = "describe.onnx", "similarity.onnx", "model.json"
TOLERANCE = 1e-4  # between ONNX Runtime and PyTorch
NEEDED = ("onnx", "onnxscript", "onnxruntime")
CHECKED = ((1, 1), (5, 3))  # sizes that are checked: classes or queries, shots


class _Describe(nn.Module):
    """Images (B, Z, C, H, W) of B classes with Z shots each, or of B queries with Z = 1 → descriptors (B, …)."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, images: Tensor) -> Tensor:
        features = self.method.encode(images.flatten(0, 1))
        return self.method.describe(features.unflatten(0, images.shape[:2]))


class _Similarity(nn.Module):
    """Descriptors of classes (L, …) and of queries (Q, …) → logits (Q, L)."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, support: Tensor, query: Tensor) -> Tensor:
        return self.method.compare(support.unsqueeze(0), query.unsqueeze(0))[0]


def export_onnx(method: Method, folder: Path, name: str, calibration: Calibration | None = None) -> dict[str, Any]:
    """Write describe.onnx, similarity.onnx and model.json to a folder, after a check of ONNX Runtime against PyTorch.

    describe: images (B, Z, C, H, W), floats in 0…1 of the model's size → descriptors. similarity: support and query
    descriptors → logits (Q, L). B, Z, L and Q are dynamic. Returns the content of model.json: sizes, and the largest
    difference from PyTorch. Refuses methods that cannot be exported, and untrained models.
    """
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise UsageError(f"export needs {', '.join(missing)}: pip install 'sosn[onnx]'")
    if not method.exportable:
        raise UsageError(
            f"this {method.name!r} model cannot be exported: use SoSN with relation average, ranked, or_like or difference"
        )
    method.check_trained()
    method = method.cpu().float().eval()
    size, channels = method.preprocessing.source, method.preprocessing.channels
    if folder.is_file() or ((folder / ABOUT_FILE).exists() and not (folder / DESCRIBE_FILE).exists()):
        raise UsageError(f"{str(folder)!r} is a file or contains another {ABOUT_FILE}: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    free = torch.export.Dim.DYNAMIC
    with tempfile.TemporaryDirectory() as temporary, engine("plain"), torch.no_grad(), _quietly():
        images = torch.rand(3, 2, channels, size, size, generator=generator("export"))
        describe, similarity = _Describe(method).eval(), _Similarity(method).eval()
        described = describe(images)
        paths = {DESCRIBE_FILE: Path(temporary) / DESCRIBE_FILE, SIMILARITY_FILE: Path(temporary) / SIMILARITY_FILE}
        torch.onnx.export(
            describe, (images,), paths[DESCRIBE_FILE], input_names=["images"], output_names=["descriptors"], dynamo=True,
            dynamic_shapes=({0: free, 1: free},), external_data=False, verbose=False,
        )  # fmt: skip
        torch.onnx.export(
            similarity, (described, described[:2]), paths[SIMILARITY_FILE], input_names=["support", "query"],
            output_names=["logits"], dynamo=True, dynamic_shapes=({0: free}, {0: free}), external_data=False, verbose=False,
        )  # fmt: skip
        difference = _largest_difference(describe, similarity, paths, channels, size)
        if not difference <= TOLERANCE:
            raise SosnError(f"ONNX Runtime and PyTorch differ by {difference:g}, more than {TOLERANCE:g}: nothing was written")
        for file, path in paths.items():
            write_atomically(folder / file, path.read_bytes())
    about = {
        "model": name, "input_size": size, "channels": channels, "largest_difference": difference,
        "bytes": {file: (folder / file).stat().st_size for file in paths},
        "calibration": None if calibration is None else calibration.to_json(),
    }  # fmt: skip
    write_atomically(folder / ABOUT_FILE, (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
    return about


def _largest_difference(describe: nn.Module, similarity: nn.Module, paths: dict[str, Path], channels: int, size: int) -> float:
    """Return the largest difference between ONNX Runtime and PyTorch, over descriptors and logits of several sizes."""
    import onnxruntime

    sessions = {file: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for file, path in paths.items()}
    largest = 0.0
    for count, shots in CHECKED:
        images = torch.rand(count, shots, channels, size, size, generator=generator("export", count, shots))
        query = describe(images[:, :1])
        support = describe(images)
        found = sessions[DESCRIBE_FILE].run(None, {"images": images.numpy()})[0]
        largest = max(largest, float((torch.from_numpy(found) - support).abs().max()))
        found = sessions[SIMILARITY_FILE].run(None, {"support": support.numpy(), "query": query.numpy()})[0]
        largest = max(largest, float((torch.from_numpy(found) - similarity(support, query)).abs().max()))
    return largest


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter's log messages."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
