"""Weights in safetensors files, with what is needed to use them again written beside the numbers."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sosn.checkpoint.old_format import method_and_config, tensors_of
from sosn.errors import CheckpointError, SosnError, UsageError
from sosn.method import method_class
from sosn.method.base import Method
from sosn.util.files import resource, write_atomically

WEIGHTS_FILE = "model.safetensors"  # in a run folder
RUN_FILE = "run.json"  # there too: what runs, on which images
T = TypeVar("T")


def shelf() -> Path:
    """The folder of the models that come with the package."""
    return resource("checkpoint", "shipped")


def is_shipped(name: str) -> bool:
    """Whether a model of this name comes with the package."""
    return bool(name) and (shelf() / f"{name}.safetensors").is_file()


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Save tensors and a JSON document about them."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(flat, {"sosn": json.dumps(about)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and the document about them."""
    return _opened(path, lambda file: {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def _opened(path: Path, read: Callable[[Any], T]) -> tuple[T, dict[str, Any]]:
    """What read takes from a file, and the document about it."""
    if not path.is_file():
        raise CheckpointError(f"there is no weights file {str(path)!r}")
    try:
        with safe_open(path, "pt") as file:
            about = dict(json.loads((file.metadata() or {})["sosn"]))
            return read(file), about
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged or not a file of sosn's ({error})") from error


def read_about(path: Path) -> dict[str, Any]:
    """The document about the tensors of a file, without the tensors."""
    return _opened(path, lambda file: None)[1]


def save_method(path: Path, method: Method, about: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None) -> None:
    """Save a method with its constructor's arguments; dtype=torch.float16 halves the file."""
    state = {
        name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
        for name, tensor in method.state_dict().items()
    }
    save_tensors(path, state, {"method": method.name, "config": method.config, "trained": method.trained, **(about or {})})


def write_model(folder: Path, method: Method, recipe: Mapping[str, Any], seen: Sequence[Mapping[str, Any]] = ()) -> None:
    """A folder that `sosn eval`, `sosn compare` and sosn.load take, with a recipe's table. Refuses one that holds a model.

    seen: classes that the weights were trained on besides those of the recipe, as training.seen.TrainingClasses tells them.
    """
    check_no_model(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SosnError(f"cannot make the folder {str(folder)!r} ({error.strerror}): choose another --out") from error
    save_method(folder / WEIGHTS_FILE, method, {"recipe": recipe, "seen": list(seen)})


def check_no_model(folder: Path) -> None:
    """Refuse a folder that already holds a model, and a file."""
    if folder.is_file():
        raise UsageError(f"{str(folder)!r} is a file: choose another --out")
    if (folder / WEIGHTS_FILE).exists():
        raise UsageError(f"{str(folder)!r} already holds a model: choose another --out")


def load_method(path: Path) -> tuple[Method, dict[str, Any]]:
    """A method, in evaluation mode, and what was written about it."""
    tensors, about = load_tensors(path)
    if "method" not in about:
        raise CheckpointError(f"{str(path)!r} holds no method: it is a checkpoint for resuming a run")
    try:
        name, config = method_and_config(about["method"], about["config"])
        method = method_class(name)(**config)
    except (UsageError, TypeError, KeyError) as error:
        raise CheckpointError(f"{str(path)!r} describes a method that this version of sosn cannot build ({error})") from error
    restore(method, tensors_of(about["method"], tensors), path)
    method.trained = bool(about.get("trained", True))  # files from before this was written down come from training
    return method.eval(), about


def restore(method: Method, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a method; refuses those of another architecture, naming the first difference."""
    own = method.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        ours = tuple(own[name].shape) if name in own else "absent"
        theirs = tuple(tensors[name].shape) if name in tensors else "absent"
        if ours != theirs:
            raise CheckpointError(
                f"{str(path)!r} has another architecture: {name!r} is {theirs} there and {ours} here; "
                "use the recipe it was trained with"
            )
    method.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in tensors.items()})
