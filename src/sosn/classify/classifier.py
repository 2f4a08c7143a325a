"""Few pictures of each class in, answers out: no training, no GPU."""

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
from sosn.method.base import Method
from sosn.util.device import resolve_device
from sosn.util.files import file_digest, write_atomically

Array = np.ndarray[Any, Any]
SUPPORT_FILE = "support.safetensors"
CLASSIFIER_FILE = "classifier.json"  # written last: a folder without it was never finished


@dataclass(frozen=True)
class Nearest:
    """The picture of the support that is nearest to a query."""

    label: Label
    index: int  # its place among all pictures given to fit and partial_fit, from 0
    source: str | None  # its path, if it came from a file
    similarity: float


@dataclass(frozen=True)
class Answer:
    """What a picture was taken for, and how every class scored. None: it is none of these."""

    answer: Label | None
    probability: float  # of the most likely class
    similarities: dict[Label, float]
    probabilities: dict[Label, float]

    @property
    def likeliest(self) -> Label:
        """The class whose probability it is, answered or not."""
        return max(self.probabilities, key=self.probabilities.__getitem__)


@dataclass(frozen=True)
class Explanation(Answer):
    """An answer, and the picture of the support that is nearest."""

    nearest: Nearest


class FewShotClassifier:
    """Tells classes apart from one or a few pictures of each; scikit-learn's estimator interface.

    model: a shipped model's name, a run folder, a method, or "auto": the shipped model for drawings or for photos, whichever
    the pictures are. encoder: in place of a model, "timm:NAME", a frozen backbone with the nearest second-order prototype;
    its weights are timm's own, or those of the file checkpoint. device: cpu, cuda or auto. polarity: "auto" inverts light-on-
    dark drawings for models trained on dark-on-light ones, or the reverse, and warns of it; "as_is" leaves all as they are.

    Pictures are paths, a folder, Pillow images, arrays (H×W or H×W×C) or tensors (C×H×W), uint8 or 0–1. After fit:
    classes_, sorted; shots_, how many pictures each has; model_, the model's name; image_type_, drawings or photos;
    calibration_, what was measured of its confidence, or None; background_, light or dark, or None where nothing is inverted.
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
        """Remember pictures and their labels, or a folder of folders, whose names are the labels."""
        pictures, own = _labelled(images, labels)
        images_are = type_of_pictures(pictures)
        name, method, calibration = self._open_model(images_are, min(Counter(own).values()))
        reader, support = Reader(method.preprocessing, self.polarity), Support(method)
        support.add(encode_images(method, reader.read_all(pictures)), own)
        self.image_type_, self.model_, self.method_, self.calibration_ = images_are, name, method, calibration
        self.background_ = reader.background
        self._remember(support, pictures, own, [])
        reader.warn()
        return self

    def partial_fit(self, images: Pictures, labels: Sequence[Any] | Array | None = None) -> Self:
        """Add pictures of new or of known classes; what was remembered before is not computed again."""
        if not self.__sklearn_is_fitted__():
            return self.fit(images, labels)
        pictures, own = _labelled(images, labels)
        if type(own[0]) is not type(self._support.labels[0]):
            raise UsageError(f"labels are {type(own[0]).__name__}; those before were {type(self._support.labels[0]).__name__}")
        reader, support = self.new_reader(), self._support.copy()
        support.add(encode_images(self.method_, reader.read_all(pictures)), own)
        self._remember(support, pictures, own, self._given)
        reader.warn()
        return self

    def predict(self, images: Pictures, reject: float | None = None) -> Array:
        """The class of each picture. With reject, None for one that is none of these.

        reject: share of pictures of known classes that may be refused, from 0.01 to 0.5. It holds for pictures like those
        that the model was calibrated on; a model without calibration refuses it.
        """
        logits = self._logits(images)
        answers = self.classes_[logits.argmax(-1).numpy()]
        if reject is None:
            return cast(Array, answers)
        known = logits.amax(-1).numpy() >= self._threshold(reject)
        return np.array([answer if one else None for answer, one in zip(answers.tolist(), known, strict=True)], dtype=object)

    def predict_proba(self, images: Pictures) -> Array:
        """Probabilities of the classes (n, L), in the order of classes_. Says so where they are not calibrated."""
        return cast(Array, self._probabilities(self._logits(images)).numpy())

    def similarities(self, images: Pictures) -> Array:
        """How alike pictures and classes are, between 0 and 1 (n, L): SoSN's own scores, each by itself."""
        logits = self._logits(images)
        return cast(Array, self.method_.score(logits).numpy())

    def score(self, images: Pictures, labels: Sequence[Any] | Array | None = None) -> float:
        """Share of right answers."""
        pictures, own = _labelled(images, labels)
        return float(np.mean(self.predict(pictures) == np.array(own)))

    def answers(self, images: Pictures, reject: float | None = None) -> list[Answer]:
        """The answer to each picture, as predict gives it, with the scores of all classes."""
        return self._answers_of(self._logits(images), reject)

    def answer_features(self, features: Tensor, reject: float | None = None) -> list[Answer]:
        """The same from features that encode_images gave."""
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
        """For each picture the nearest one of the support, each of which counts as a class of its own."""
        self._check_fitted()
        return self._nearest_of(self._by_parts(list_pictures(images), self._support.picture_logits))

    def nearest_features(self, features: Tensor) -> list[Nearest]:
        """The same from features that encode_images gave."""
        return self._nearest_of(self._support.picture_logits(features).cpu())

    def _nearest_of(self, singly: Tensor) -> list[Nearest]:
        given = self._in_order()
        found = []
        for row, scores in zip(singly, self.method_.score(singly), strict=True):
            label, (index, source) = given[int(row.argmax())]
            found.append(Nearest(label, index, source, float(scores[row.argmax()])))
        return found

    def explain(self, image: Picture) -> Explanation:
        """The scores of all classes for one picture, and the nearest picture of the support."""
        self._check_fitted()
        pictures = list_pictures(image) if isinstance(image, str | os.PathLike) else [image]
        if len(pictures) > 1:
            raise UsageError(f"explain takes one image; {str(image)!r} holds {len(pictures)}")
        reader = self.new_reader()
        features = encode_images(self.method_, reader.read_all(pictures))
        reader.warn()
        return Explanation(**vars(self.answer_features(features)[0]), nearest=self.nearest_features(features)[0])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model and what is remembered into a folder, as safetensors and JSON. Refuses one with another model."""
        self._check_fitted()
        path = Path(folder)
        if not (path / CLASSIFIER_FILE).exists() and (path.is_file() or (path / WEIGHTS_FILE).exists()):
            raise UsageError(
                f"{str(folder)!r} is a file or holds a model that is not a saved classifier: choose another folder"
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
        """A classifier as it was saved. Refuses a folder that is not whole."""
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
            own = [one["label"] for one in document["pictures"]]
            loaded = cls(**{"model": str(folder)} | document["params"])
            loaded.image_type_ = document.get("image_type") or document["kind"]  # as earlier versions called it
            loaded.model_ = document["model_name"]
            given = [(one["index"], one["label"], one["source"]) for one in document["pictures"]]
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise CheckpointError(f"{str(folder)!r} holds a damaged classifier ({error}): save it again") from error
        loaded.method_ = method.to(resolve_device(loaded.device))
        loaded.background_ = loaded.new_reader().background
        loaded.calibration_ = read_calibration(path / CALIBRATION_FILE)
        support = Support(loaded.method_)
        support.add(features.to(method.device), own)
        loaded._support, loaded.classes_ = support, np.array(support.labels)
        loaded._given = [(label, source) for _, label, source in sorted(given)]
        return loaded

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; they count from the next fit."""
        for name, value in params.items():
            if name not in self.get_params():
                raise UsageError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    @property
    def shots_(self) -> list[int]:
        """How many pictures each class has, in the order of classes_."""
        self._check_fitted()
        return self._support.counts

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_support")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of an estimator; it is imported here, by itself, and nowhere else."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        images = InputTags(two_d_array=False, three_d_array=True, string=True)
        target = TargetTags(required=False)
        return Tags(estimator_type="classifier", target_tags=target, classifier_tags=ClassifierTags(), input_tags=images)

    def _open_model(self, wanted: ImageType, shots: int) -> tuple[str, Method, Calibration | None]:
        """The model's name, the model on its device, and its calibration. Refuses one that was never trained."""
        device = resolve_device(self.device)
        if self.encoder is not None:
            return self.encoder, self._open_encoder(self.encoder).to(device), None
        if self.checkpoint is not None:
            raise UsageError(
                "checkpoint is given and encoder is not: name the network of those weights, for instance timm:resnet18"
            )
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
            raise UsageError(f"model is {self.model!r} and encoder {encoder!r}: give one of them")
        return open_timm(backbone, None if self.checkpoint is None else Path(self.checkpoint))

    def _remember(
        self, support: Support, pictures: Sequence[Picture], labels: Sequence[Label], before: "list[tuple[Label, str | None]]"
    ) -> None:
        self._support = support
        self._given = [*before, *((label, source_of(one)) for label, one in zip(labels, pictures, strict=True))]
        self.classes_ = np.array(support.labels)

    def _in_order(self) -> list[tuple[Label, tuple[int, str | None]]]:
        """Every picture's label, place and path, class by class as the support has them."""
        places: dict[Label, list[tuple[int, str | None]]] = {}
        for index, (label, source) in enumerate(self._given):
            places.setdefault(label, []).append((index, source))
        return [(label, place) for label in self._support.labels for place in places[label]]

    def _logits(self, images: Pictures) -> Tensor:
        self._check_fitted()
        return self._by_parts(list_pictures(images), self._support.logits)

    def _by_parts(self, pictures: Sequence[Picture], compare: Callable[[Tensor], Tensor]) -> Tensor:
        """What compare says of the features of all pictures, a part of them at a time."""
        reader, found = self.new_reader(), []
        for first in range(0, len(pictures), IMAGES):
            part = reader.read_all(pictures[first : first + IMAGES])
            found.append(compare(encode_images(self.method_, part)).cpu())
        reader.warn(stacklevel=4)
        return torch.cat(found)

    def new_reader(self) -> Reader:
        """What reads pictures for its model."""
        return Reader(self.method_.preprocessing, self.polarity)

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
                f"model {self.model_!r} was not calibrated, so reject has no threshold: leave reject out, use a model whose "
                "card has a calibration, or measure one with benchmarks/calibrate_model.py"
            )
        return self.calibration_.threshold(len(self.classes_), min(self._support.counts), reject)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this FewShotClassifier has no classes yet: call fit with images and labels first")


def _labelled(images: Pictures, labels: Sequence[Any] | Array | None) -> tuple[list[Picture], list[Label]]:
    """Pictures and a plain label for each. Refuses labels that are missing, too few, or no words or whole numbers."""
    if labels is None:
        if not isinstance(images, str | os.PathLike):
            raise UsageError("labels are missing: give one for each image, or a folder that holds a folder for each class")
        files, names = list_classes(images)
        return list(files), list(names)
    pictures, own = list_pictures(images), np.asarray(labels)
    if own.dtype == object and all(isinstance(label, str) for label in own.flat):
        own = own.astype(str)
    if own.ndim != 1 or len(own) != len(pictures):
        raise UsageError(f"there are {len(pictures)} images and labels of shape {own.shape}: give one label for each image")
    if own.dtype.kind not in "iubU":
        raise UsageError(f"labels are {own.dtype}; they are words or whole numbers")
    return pictures, cast(list[Label], own.tolist())
