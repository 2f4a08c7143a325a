"""A classifier that learns classes from a few images, without training and without a GPU."""

import inspect
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from sosn.checkpoint.registry import load
from sosn.checkpoint.storage import WEIGHTS_FILE, load_method, load_tensors, save_method, save_tensors
from sosn.checkpoint.timm import open_timm
from sosn.classify.background import Inverting
from sosn.classify.image_type import ImageType, fitting_model, type_of_pictures
from sosn.classify.reader import Reader
from sosn.classify.support import IMAGES, Label, Support, encode_images
from sosn.data.image import Picture, Pictures, list_pictures, source_of
from sosn.data.listing import list_classes
from sosn.errors import CheckpointError, NotFittedError, SosnWarning, UsageError
from sosn.evaluation.calibration import CALIBRATION_FILE, Calibration, calibration_of, probabilities, read_calibration
from sosn.method.base import Method, in_order
from sosn.util.device import resolve_device
from sosn.util.files import file_digest, write_atomically

Array = np.ndarray[Any, Any]
SUPPORT_FILE = "support.safetensors"
CLASSIFIER_FILE = "classifier.json"  # written last: a folder without it is incomplete


@dataclass(frozen=True)
class Nearest:
    """The support image that is nearest to a query."""

    label: Label
    index: int  # its position among all images given to fit and partial_fit, from 0
    source: str | None  # its path, if it came from a file
    similarity: float


@dataclass(frozen=True)
class Answer:
    """The answer for an image and the scores of all classes. An answer of None means none of these."""

    answer: Label | None
    probability: float  # of the most likely class
    similarities: dict[Label, float]
    probabilities: dict[Label, float]

    @property
    def likeliest(self) -> Label:
        """The most likely class, even if the answer is None."""
        return max(self.probabilities, key=self.probabilities.__getitem__)


@dataclass(frozen=True)
class Explanation(Answer):
    """An answer and the nearest support image."""

    nearest: Nearest


class FewShotClassifier:
    """Classifies images from one or a few examples of each class. It has scikit-learn's estimator interface.

    model: the name of a shipped model, a run folder, a method, or "auto", which chooses the shipped model for drawings or for
    photos. encoder: "timm:NAME" instead of a model: a frozen timm backbone with the nearest second-order prototype.
    checkpoint: a file with the weights of that backbone; by default timm downloads them. device: "cpu", "cuda" or "auto".
    polarity: "auto" turns drawings into those that a drawing model was trained on: black on white, drawn with its pen. It warns
    of light-on-dark drawings that it inverts. "as_is" changes no image.

    Images are paths, a folder, Pillow images, arrays (H×W or H×W×C) or tensors (C×H×W), uint8 or floats in 0–1.
    Attributes after fit: classes_, sorted; shots_, the number of images of each class; model_, the name of the model;
    image_type_, "drawings" or "photos"; calibration_, or None; background_, "light", "dark" or None if nothing is inverted.
    """

    _estimator_type = "classifier"

    def __init__(
        self,
        model: str | os.PathLike[str] | Method = "auto",
        encoder: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        polarity: Inverting = "auto",
    ) -> None:
        self.model = model
        self.encoder = encoder
        self.checkpoint = checkpoint
        self.device = device
        self.polarity = polarity

    def fit(self, images: Pictures, labels: Sequence[Any] | Array | None = None) -> Self:
        """Learn classes from images and labels, or from a folder with one subfolder per class."""
        pictures, names = _labelled(images, labels)
        found_type = type_of_pictures(pictures)
        name, method, calibration = self._open_model(found_type, min(Counter(names).values()))
        reader, support = Reader(method.preprocessing, self.polarity, found_type), Support(method)
        support.add(encode_images(method, reader.read_all(pictures)), names)
        self.image_type_, self.model_, self.method_, self.calibration_ = found_type, name, method, calibration
        self.background_ = reader.background
        self._remember(support, pictures, names, [])
        reader.warn()
        return self

    def partial_fit(self, images: Pictures, labels: Sequence[Any] | Array | None = None) -> Self:
        """Add images of new or known classes. Images that were added before are not encoded again."""
        if not self.__sklearn_is_fitted__():
            return self.fit(images, labels)
        pictures, names = _labelled(images, labels)
        new, old = (type(group[0]) for group in (names, self._support.labels))
        if new is not old:
            raise UsageError(f"labels are {new.__name__}, but earlier labels were {old.__name__}: use one type")
        reader, support = self.new_reader(), self._support.copy()
        support.add(encode_images(self.method_, reader.read_all(pictures)), names)
        self._remember(support, pictures, names, self._given)
        reader.warn()
        return self

    def predict(self, images: Pictures, reject: float | None = None) -> Array:
        """Return the class of each image. With reject, an image that is none of these gets None.

        reject: share of images of known classes that may be rejected, from 0.01 to 0.5. It holds for images like those that
        the model was calibrated on. Refused for a model without calibration.
        """
        logits = self._logits(images)
        answers = self.classes_[logits.argmax(-1).numpy()]
        if reject is None:
            return cast(Array, answers)
        known = logits.amax(-1).numpy() >= self._threshold(reject)
        return np.array([answer if one else None for answer, one in zip(answers.tolist(), known, strict=True)], dtype=object)

    def predict_proba(self, images: Pictures) -> Array:
        """Return class probabilities (n, L), in the order of classes_. Warns if they are not calibrated."""
        return cast(Array, self._probabilities(self._logits(images)).numpy())

    def similarities(self, images: Pictures) -> Array:
        """Return the similarities of images and classes (n, L), between 0 and 1. Rows do not sum to 1."""
        logits = self._logits(images)
        return cast(Array, in_order(self.method_.score(logits), logits).numpy())

    def score(self, images: Pictures, labels: Sequence[Any] | Array | None = None) -> float:
        """Return the accuracy."""
        pictures, names = _labelled(images, labels)
        return float(np.mean(self.predict(pictures) == np.array(names)))

    def answers(self, images: Pictures, reject: float | None = None) -> list[Answer]:
        """Return the answer for each image, as predict does, with the scores of all classes."""
        return self._answers_of(self._logits(images), reject)

    def answer_features(self, features: Tensor, reject: float | None = None) -> list[Answer]:
        """Return the answers for features of encode_images."""
        return self._answers_of(self._support.logits(features).cpu(), reject)

    def _answers_of(self, logits: Tensor, reject: float | None) -> list[Answer]:
        names = cast(list[Label], self.classes_.tolist())
        threshold = None if reject is None else self._threshold(reject)
        found = []
        for row, chances, scores in zip(logits, self._probabilities(logits).tolist(), self.method_.score(logits), strict=True):
            best = int(row.argmax())
            refused = threshold is not None and float(row[best]) < threshold
            by_class = dict(zip(names, scores.tolist(), strict=True)), dict(zip(names, chances, strict=True))
            found.append(Answer(None if refused else names[best], chances[best], *by_class))
        return found

    def nearest(self, images: Pictures) -> list[Nearest]:
        """Return the nearest support image of each image. Support images are compared one by one."""
        self._check_fitted()
        return self._nearest_of(self._by_parts(list_pictures(images), self._support.picture_logits))

    def nearest_features(self, features: Tensor) -> list[Nearest]:
        """Return the nearest support images of features of encode_images."""
        return self._nearest_of(self._support.picture_logits(features).cpu())

    def _nearest_of(self, logits: Tensor) -> list[Nearest]:
        given = self._in_order()
        found = []
        for row, scores in zip(logits, self.method_.score(logits), strict=True):
            label, (index, source) = given[int(row.argmax())]
            found.append(Nearest(label, index, source, float(scores[row.argmax()])))
        return found

    def explain(self, image: Picture) -> Explanation:
        """Return the answer for one image, with the scores of all classes and the nearest support image."""
        self._check_fitted()
        pictures = list_pictures(image) if isinstance(image, str | os.PathLike) else [image]
        if len(pictures) > 1:
            raise UsageError(f"explain takes one image, but {str(image)!r} contains {len(pictures)}")
        reader = self.new_reader()
        features = encode_images(self.method_, reader.read_all(pictures))
        reader.warn()
        return Explanation(**vars(self.answer_features(features)[0]), nearest=self.nearest_features(features)[0])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the model and the support to a folder, as safetensors and JSON. Refuses a folder with another model."""
        self._check_fitted()
        path = Path(folder)
        if not (path / CLASSIFIER_FILE).exists() and (path.is_file() or (path / WEIGHTS_FILE).exists()):
            raise UsageError(
                f"{str(folder)!r} is a file or contains a model that is not a saved classifier: choose another folder"
            )
        path.mkdir(parents=True, exist_ok=True)
        save_method(path / WEIGHTS_FILE, self.method_)
        features = torch.cat([self._support.shots[label] for label in self._support.labels])
        save_tensors(path / SUPPORT_FILE, {"features": features}, {})
        if self.calibration_ is None:
            (path / CALIBRATION_FILE).unlink(missing_ok=True)
        else:
            write_atomically(path / CALIBRATION_FILE, json.dumps(self.calibration_.to_json()).encode())
        params = self.get_params().items()
        document = {
            "params": {name: os.fspath(value) for name, value in params if isinstance(value, str | os.PathLike)},
            "model_name": self.model_,
            "image_type": self.image_type_,
            "pictures": [{"label": label, "index": index, "source": source} for label, (index, source) in self._in_order()],
            "files": {name: file_digest(path / name) for name in (WEIGHTS_FILE, SUPPORT_FILE)},
        }
        write_atomically(path / CLASSIFIER_FILE, (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Load a saved classifier. Refuses an incomplete folder."""
        path = Path(folder)
        if not (path / CLASSIFIER_FILE).is_file():
            raise CheckpointError(
                f"{str(folder)!r} has no {CLASSIFIER_FILE}: it is not a saved classifier, or saving was interrupted"
            )
        try:
            document = json.loads((path / CLASSIFIER_FILE).read_text("utf-8"))
            if any(file_digest(path / name) != digest for name, digest in document["files"].items()):
                raise CheckpointError(f"the files in {str(folder)!r} do not belong together: save the classifier again")
            method, _ = load_method(path / WEIGHTS_FILE)
            features = load_tensors(path / SUPPORT_FILE)[0]["features"]
            labels = [one["label"] for one in document["pictures"]]
            loaded = cls(**{"model": str(folder)} | document["params"])
            loaded.image_type_ = document.get("image_type") or document["kind"]  # the key of earlier versions
            loaded.model_ = document["model_name"]
            given = [(one["index"], one["label"], one["source"]) for one in document["pictures"]]
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise CheckpointError(f"the classifier in {str(folder)!r} is damaged ({error}): save it again") from error
        loaded.method_ = method.to(resolve_device(loaded.device))
        loaded.background_ = loaded.new_reader().background
        loaded.calibration_ = read_calibration(path / CALIBRATION_FILE)
        support = Support(loaded.method_)
        support.add(features.to(method.device), labels)
        loaded._support, loaded.classes_ = support, np.array(support.labels)
        loaded._given = [(label, source) for _, label, source in sorted(given)]
        return loaded

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor. They take effect in the next fit."""
        for name, value in params.items():
            if name not in self.get_params():
                raise UsageError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    @property
    def shots_(self) -> list[int]:
        """The number of images of each class, in the order of classes_."""
        self._check_fitted()
        return self._support.counts

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_support")

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags. Only scikit-learn calls this, so the import is safe."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        images = InputTags(two_d_array=False, three_d_array=True, string=True)
        target = TargetTags(required=False)
        return Tags(estimator_type="classifier", target_tags=target, classifier_tags=ClassifierTags(), input_tags=images)

    def _open_model(self, wanted: ImageType, shots: int) -> tuple[str, Method, Calibration | None]:
        """Return the model's name, the model on its device, and its calibration. Refuses an untrained model."""
        device = resolve_device(self.device)
        if self.encoder is not None:
            return self.encoder, self._open_encoder(self.encoder).to(device), None
        if self.checkpoint is not None:
            raise UsageError("checkpoint needs encoder: name the network of the weights, for instance encoder='timm:resnet18'")
        if isinstance(self.model, Method):
            self.model.check_trained()
            return self.model.name, self.model.to(device), None
        name = fitting_model(wanted, shots) if self.model == "auto" else str(self.model)
        method = load(name)
        method.check_trained()
        return name, method.to(device), calibration_of(name)

    def _open_encoder(self, encoder: str) -> Method:
        library, _, backbone = encoder.partition(":")
        if library != "timm" or not backbone:
            raise UsageError(f"encoder is {encoder!r}; write timm:NAME, for instance timm:resnet18")
        if self.model != "auto":
            raise UsageError(f"model is {self.model!r} and encoder is {encoder!r}: give only one of them")
        return open_timm(backbone, None if self.checkpoint is None else Path(self.checkpoint))

    def _remember(
        self, support: Support, pictures: Sequence[Picture], labels: Sequence[Label], before: "list[tuple[Label, str | None]]"
    ) -> None:
        self._support = support
        self._given = [*before, *((label, source_of(one)) for label, one in zip(labels, pictures, strict=True))]
        self.classes_ = np.array(support.labels)

    def _in_order(self) -> list[tuple[Label, tuple[int, str | None]]]:
        """Return the label, position and path of every support image, in the order of the support."""
        places: dict[Label, list[tuple[int, str | None]]] = {}
        for index, (label, source) in enumerate(self._given):
            places.setdefault(label, []).append((index, source))
        return [(label, place) for label in self._support.labels for place in places[label]]

    def _logits(self, images: Pictures) -> Tensor:
        self._check_fitted()
        return self._by_parts(list_pictures(images), self._support.logits)

    def _by_parts(self, pictures: Sequence[Picture], compare: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `compare` to the features of all images, in batches."""
        reader, found = self.new_reader(), []
        for first in range(0, len(pictures), IMAGES):
            part = reader.read_all(pictures[first : first + IMAGES])
            found.append(compare(encode_images(self.method_, part)).cpu())
        reader.warn(stacklevel=4)
        return torch.cat(found)

    def new_reader(self) -> Reader:
        """Return a reader of images for the model."""
        return Reader(self.method_.preprocessing, self.polarity, self.image_type_)

    def _probabilities(self, logits: Tensor) -> Tensor:
        if self.calibration_ is None:
            warnings.warn(
                f"the probabilities of model {self.model_!r} are not calibrated: trust their order, not their size",
                SosnWarning,
                stacklevel=4,
            )
            return probabilities(logits, 1.0)
        return probabilities(logits, self.calibration_.temperature(len(self.classes_), min(self._support.counts)))

    def _threshold(self, reject: float) -> float:
        if self.calibration_ is None:
            raise UsageError(
                f"reject needs a calibrated model, and {self.model_!r} is not: remove reject, use a shipped model with a "
                "calibration, or calibrate this one with benchmarks/calibrate_model.py"
            )
        return self.calibration_.threshold(len(self.classes_), min(self._support.counts), reject)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this FewShotClassifier is not fitted: call fit with images and labels first")


def _labelled(images: Pictures, labels: Sequence[Any] | Array | None) -> tuple[list[Picture], list[Label]]:
    """Return images with a label each. Refuses missing labels, a wrong number of them, and other types than str or int."""
    if labels is None:
        if not isinstance(images, str | os.PathLike):
            raise UsageError("labels are missing: give one for each image, or a folder with one subfolder per class")
        files, names = list_classes(images)
        return list(files), list(names)
    pictures, array = list_pictures(images), np.asarray(labels)
    if array.dtype == object and all(isinstance(label, str) for label in array.flat):
        array = array.astype(str)
    if array.ndim != 1 or len(array) != len(pictures):
        raise UsageError(f"there are {len(pictures)} images and labels of shape {array.shape}: give one label for each image")
    if array.dtype.kind not in "iubU":
        raise UsageError(f"labels are {array.dtype}; they must be strings or integers")
    return pictures, cast(list[Label], array.tolist())
