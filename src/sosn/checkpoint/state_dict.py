"""Read published state dicts without running code."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sosn.errors import CheckpointError, UsageError


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a PyTorch or safetensors file by name. A state dict under "state_dict" or "model" is found too."""
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    try:
        loaded: Any = (
            load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
        )
    except (
        pickle.UnpicklingError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{str(path)!r} is not a PyTorch state dict, or reading it would run code ({type(error).__name__})"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{str(path)!r} is not a state dict: it contains something other than tensors by name")
    return dict(loaded)
