"""Warm start: begin training from the weights of another model, where they fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sosn.checkpoint.registry import model_path
from sosn.checkpoint.storage import load_tensors
from sosn.checkpoint.training_classes import TrainingClasses, training_classes
from sosn.errors import CheckpointError, UsageError
from sosn.method import Method
from sosn.util.files import file_digest

FITTED = "preprocessing."  # fitted to the new images, so not taken
NAMED = 4  # layers that a message names


@dataclass(frozen=True)
class Start:
    """Which tensors were taken from which model."""

    model: str
    weights: str  # digest of the file
    taken: tuple[str, ...]  # names of parameters and buffers
    initialised: tuple[str, ...]  # tensors of the new model that were not taken
    unused: tuple[str, ...]  # tensors of the other model that do not fit
    training_classes: tuple[TrainingClasses, ...]  # of the weights

    def __str__(self) -> str:
        sentence = f"{len(self.taken)} of {len(self.taken) + len(self.initialised)} tensors taken from {self.model!r}"
        if self.initialised:
            sentence += f"; newly initialised: {_parts(self.initialised)}"
        if self.unused:
            sentence += f"; not used: {_parts(self.unused)}"
        return sentence

    def to_json(self) -> dict[str, Any]:
        table = {name: getattr(self, name) for name in ("model", "weights", "taken")}
        table |= {"own": self.initialised, "unused": self.unused}
        return table | {"seen": [one.to_json() for one in self.training_classes]}


def take_weights(method: Method, model: str) -> Start:
    """Copy every parameter and buffer with the same name and shape from a model. Refuses a model of which none fits."""
    path = model_path(model)
    tensors, about = load_tensors(path)
    if "method" not in about:
        raise CheckpointError(f"start {str(path)!r} is a checkpoint for resuming a run, not a model: give its folder")
    state = {name: tensor for name, tensor in method.state_dict().items() if not name.startswith(FITTED)}
    given = {name: tensor for name, tensor in tensors.items() if not name.startswith(FITTED)}
    taken = tuple(name for name, tensor in state.items() if name in given and given[name].shape == tensor.shape)
    if not {name for name, _ in method.named_parameters()} & set(taken):
        raise UsageError(
            f"no weight of start {model!r}, a {about['method']!r} model, fits this {method.name!r} model by name and shape: "
            "choose another start, or use its encoder, encoder_width and channels"
        )
    with torch.no_grad():
        for name in taken:
            state[name].copy_(given[name])
    return Start(
        model, file_digest(path), taken, tuple(name for name in state if name not in taken),
        tuple(sorted(given.keys() - set(taken))), tuple(training_classes(model)),
    )  # fmt: skip


def _parts(names: Sequence[str]) -> str:
    """List the layers of these tensors, at most NAMED of them."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    more = f" and {len(layers) - NAMED} more" if len(layers) > NAMED else ""
    return ", ".join(layers[:NAMED]) + more
