"""Save and load a classifier: a folder with its model, its support and what it was given, as safetensors and JSON."""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from sosn.checkpoint.storage import WEIGHTS_FILE, load_method, load_tensors, save_method, save_tensors
from sosn.classify.image_type import ImageType
from sosn.classify.support import Label
from sosn.errors import CheckpointError, UsageError
from sosn.evaluation.calibration import CALIBRATION_FILE, Calibration, read_calibration
from sosn.method.base import Method
from sosn.util.files import file_digest, write_atomically

SUPPORT_FILE = "support.safetensors"
CLASSIFIER_FILE = "classifier.json"  # written last: a folder without it is incomplete


@dataclass(frozen=True)
class Given:
    """An image that was given to fit or partial_fit."""

    label: Label
    index: int  # its position among all of them, from 0
    source: str | None  # its path, if it came from a file


@dataclass(frozen=True)
class Saved:
    """What a folder holds of a classifier."""

    params: dict[str, str]  # arguments of the constructor
    model_name: str
    image_type: ImageType
    method: Method
    calibration: Calibration | None
    features: Tensor  # of the images, in the order of given
    given: list[Given]


def check_folder(path: Path) -> None:
    """Refuse a folder with other files than a saved classifier's, such as pictures or another model."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file: choose a folder for the classifier")
    if path.is_dir() and not (path / CLASSIFIER_FILE).exists():
        others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
        if others:
            raise UsageError(f"{str(path)!r} holds other files, such as {others[0]!r}: choose a new or empty folder")


def save_classifier(path: Path, saved: Saved) -> None:
    """Write a classifier to a folder. Refuses a folder with other files."""
    check_folder(path)
    path.mkdir(parents=True, exist_ok=True)
    save_method(path / WEIGHTS_FILE, saved.method)
    save_tensors(path / SUPPORT_FILE, {"features": saved.features}, {})
    if saved.calibration is None:
        (path / CALIBRATION_FILE).unlink(missing_ok=True)
    else:
        write_atomically(path / CALIBRATION_FILE, json.dumps(saved.calibration.to_json()).encode())
    document = {
        "params": saved.params,
        "model_name": saved.model_name,
        "image_type": saved.image_type,
        "pictures": [vars(one) for one in saved.given],
        "files": {name: file_digest(path / name) for name in (WEIGHTS_FILE, SUPPORT_FILE)},
    }
    write_atomically(path / CLASSIFIER_FILE, (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode())


def load_classifier(path: Path) -> Saved:
    """Read a saved classifier. Refuses an incomplete folder."""
    if not (path / CLASSIFIER_FILE).is_file():
        raise CheckpointError(
            f"{str(path)!r} has no {CLASSIFIER_FILE}: it is not a saved classifier, or saving was interrupted"
        )
    try:
        document = json.loads((path / CLASSIFIER_FILE).read_text("utf-8"))
        if any(file_digest(path / name) != digest for name, digest in document["files"].items()):
            raise CheckpointError(f"the files in {str(path)!r} do not belong together: save the classifier again")
        return Saved(
            {"model": str(path)} | document["params"],
            document["model_name"],
            document.get("image_type") or document["kind"],  # the key of earlier versions
            load_method(path / WEIGHTS_FILE)[0],
            read_calibration(path / CALIBRATION_FILE),
            load_tensors(path / SUPPORT_FILE)[0]["features"],
            [Given(one["label"], one["index"], one["source"]) for one in document["pictures"]],
        )
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise CheckpointError(f"the classifier in {str(path)!r} is damaged ({error}): save it again") from error
