"""Save and load weights as safetensors files, with a JSON document that says how to build the method."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sosn.checkpoint.old_format import method_and_config, tensors_of
from sosn.checkpoint.packaged import packaged_weights
from sosn.errors import CheckpointError, SosnError, UsageError
from sosn.method import method_class
from sosn.method.base import Method
from sosn.util.files import resource, write_atomically

WEIGHTS_FILE = "model.safetensors"  # in a run folder
RUN_FILE = "run.json"  # in a run folder: seed, versions, machine, classes and images
T = TypeVar("T")


def shelf() -> Path:
    """Return the folder of the shipped models."""
    return resource("checkpoint", "shipped")


def is_shipped(name: str) -> bool:
    """Return whether there is a shipped model of this name."""
    return bool(name) and (shelf() / f"{name}.safetensors").is_file()


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Save tensors and a JSON document about them."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(flat, {"sosn": json.dumps(about)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file and the document about them."""
    return _opened(path, lambda file: {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def _opened(path: Path, read: Callable[[Any], T]) -> tuple[T, dict[str, Any]]:
    """Return the result of `read` on an open file, and the document about it."""
    if not path.is_file():
        raise CheckpointError(f"there is no weights file {str(path)!r}")
    try:
        with safe_open(path, "pt") as file:
            about = dict(json.loads((file.metadata() or {})["sosn"]))
            return read(file), about
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged or was not written by sosn ({error})") from error


def read_about(path: Path) -> dict[str, Any]:
    """Return the document about the tensors of a file, without the tensors."""
    return _opened(path, lambda file: None)[1]


def save_method(path: Path, method: Method, about: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None) -> None:
    """Save a method and its constructor arguments. dtype=torch.float16 halves the size of the file."""
    state = {
        name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
        for name, tensor in method.state_dict().items()
    }
    save_tensors(path, state, {"method": method.name, "config": method.config, "trained": method.trained, **(about or {})})


def write_model(folder: Path, method: Method, recipe: Mapping[str, Any], classes: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write a model folder for `sosn eval`, `sosn compare` and sosn.load. Refuses a folder that already holds a model.

    recipe: a recipe's table. classes: training classes of the weights besides those of the recipe, as
    TrainingClasses.to_json writes them.
    """
    check_no_model(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SosnError(f"cannot create the folder {str(folder)!r} ({error.strerror}): choose another --out") from error
    save_method(folder / WEIGHTS_FILE, method, {"recipe": recipe, "seen": list(classes)})


def check_no_model(folder: Path) -> None:
    """Refuse a file, and a folder that already holds a model."""
    if folder.is_file():
        raise UsageError(f"{str(folder)!r} is a file: choose another --out")
    if (folder / WEIGHTS_FILE).exists():
        raise UsageError(f"{str(folder)!r} already holds a model: choose another --out")


def load_method(path: Path) -> tuple[Method, dict[str, Any]]:
    """Load a method, in evaluation mode, and the document about it."""
    tensors, about = load_tensors(path)
    if "method" not in about:
        raise CheckpointError(f"{str(path)!r} is a checkpoint for resuming a run, not a model")
    try:
        name, config = method_and_config(about["method"], about["config"])
        method = method_class(name)(**config)
    except (UsageError, TypeError, KeyError) as error:
        raise CheckpointError(f"{str(path)!r} describes a method that this version of sosn cannot build ({error})") from error
    packaged = packaged_weights(about["packaged"]) if "packaged" in about else {}
    restore(method, tensors_of(about["method"], tensors) | packaged, path)
    method.trained = bool(about.get("trained", True))  # older files lack the key; all come from training
    return method.eval(), about


def restore(method: Method, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a method. Refuses weights of another architecture, and names the first difference."""
    state = method.state_dict()
    for name in sorted(state.keys() | tensors.keys()):
        ours = tuple(state[name].shape) if name in state else "absent"
        theirs = tuple(tensors[name].shape) if name in tensors else "absent"
        if ours != theirs:
            raise CheckpointError(
                f"{str(path)!r} has another architecture: {name!r} is {theirs} there and {ours} here; "
                "use the recipe it was trained with"
            )
    method.load_state_dict({name: tensor.to(state[name].dtype) for name, tensor in tensors.items()})
