"""A warm start: training begins with the weights of another model, where they fit."""

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

FITTED = "preprocessing."  # what is fitted to the images stays that of the new images
NAMED = 4  # parts that a sentence names


@dataclass(frozen=True)
class Start:
    """What was taken from where."""

    model: str
    weights: str  # digest of the file
    taken: tuple[str, ...]  # names of parameters and buffers
    own: tuple[str, ...]  # those of the new model that begin as they would without
    unused: tuple[str, ...]  # those of the other model that have no place here
    seen: tuple[TrainingClasses, ...]  # classes that the weights were trained on

    def __str__(self) -> str:
        sentence = f"{len(self.taken)} of {len(self.taken) + len(self.own)} tensors taken from {self.model!r}"
        if self.own:
            sentence += f"; newly initialised: {_parts(self.own)}"
        if self.unused:
            sentence += f"; not used: {_parts(self.unused)}"
        return sentence

    def to_json(self) -> dict[str, Any]:
        table = {name: getattr(self, name) for name in ("model", "weights", "taken", "own", "unused")}
        return table | {"seen": [one.to_json() for one in self.seen]}


def take_weights(method: Method, model: str) -> Start:
    """Give a method every parameter and buffer of a model that has the same name and shape. Refuses one that has none."""
    path = model_path(model)
    tensors, about = load_tensors(path)
    if "method" not in about:
        raise CheckpointError(f"start {str(path)!r} holds no method: it is a checkpoint for resuming a run; give its folder")
    own = {name: tensor for name, tensor in method.state_dict().items() if not name.startswith(FITTED)}
    given = {name: tensor for name, tensor in tensors.items() if not name.startswith(FITTED)}
    taken = tuple(name for name, tensor in own.items() if name in given and given[name].shape == tensor.shape)
    if not {name for name, _ in method.named_parameters()} & set(taken):
        raise UsageError(
            f"start {model!r} is a {about['method']!r} of which no weight fits this {method.name!r} by name and shape: give "
            "another, or the same encoder, encoder_width and channels"
        )
    with torch.no_grad():
        for name in taken:
            own[name].copy_(given[name])
    return Start(
        model, file_digest(path), taken, tuple(name for name in own if name not in taken),
        tuple(sorted(given.keys() - set(taken))), tuple(training_classes(model)),
    )  # fmt: skip


def _parts(names: Sequence[str]) -> str:
    """Names of tensors by the layer they belong to, the first few of them."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    more = f" and {len(layers) - NAMED} more" if len(layers) > NAMED else ""
    return ", ".join(layers[:NAMED]) + more
