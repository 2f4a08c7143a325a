"""A classifier that learns classes from a few images, without training and without a GPU."""

import inspect
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, cast, overload

import numpy as np
import torch
from torch import Tensor

from sosn.checkpoint.registry import load
from sosn.checkpoint.timm import open_timm
from sosn.classify.answer import Answer, Explanation, Nearest
from sosn.classify.background import Inverting
from sosn.classify.confidence import Confidence
from sosn.classify.image_type import ImageType, fitting_model, type_of_pictures
from sosn.classify.labelled import Errors, Labels, check_errors, labelled, learn_readable, warn_unreadable
from sosn.classify.labelled_evaluation import LabelledEvaluation, judge
from sosn.classify.reader import Reader
from sosn.classify.saving import Given, Saved, load_classifier, save_classifier
from sosn.classify.support import IMAGES, Label, Support, encode_images
from sosn.data.image import Picture, Pictures, list_pictures, source_of
from sosn.errors import NotFittedError, SosnWarning, UsageError
from sosn.evaluation.calibration import Calibration, calibration_of
from sosn.method.base import Method, in_order
from sosn.util.device import resolve_device

Array = np.ndarray[Any, Any]


class FewShotClassifier:
    """Classifies images from one or a few examples of each class. It has scikit-learn's estimator interface.

    model: the name of a shipped model, a run folder, a method, or "auto", which chooses the shipped model for drawings or for
    photos. encoder: "timm:NAME" instead of a model: a frozen timm backbone with the nearest second-order prototype.
    checkpoint: a file with the weights of that backbone; by default timm downloads them. device: "cpu", "cuda" or "auto".
    polarity: "auto" turns drawings into those that a drawing model was trained on: black on white, drawn with its pen. It warns
    of light-on-dark drawings that it inverts. "as_is" changes no image.

    Images are paths, a folder, Pillow images, arrays (H×W or H×W×C) or tensors (C×H×W), uint8 or floats in 0–1.
    Attributes after fit: classes_, sorted; shots_, the number of images of each class; model_, the name of the model;
    image_type_, "drawings" or "photos"; calibration_, of its card, or None; confidence_, with left_out, the
    leave-one-out scores of these images, and accuracy_; background_, "light", "dark" or None if nothing is inverted.
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

    def fit(self, images: Pictures, labels: Labels | None = None, errors: Errors = "raise") -> Self:
        """Learn classes from images and labels, or from a folder with one subfolder per class, or a CSV (path, label).

        errors: "skip" leaves out images that cannot be read, and warns, unless a class would have none left.
        """
        learn_readable(self._fit, *labelled(images, labels), errors)
        return self

    def _fit(self, pictures: list[Picture], names: list[Label]) -> None:
        found_type = type_of_pictures(pictures)
        name, method, calibration = self._open_model(found_type, min(Counter(names).values()))
        reader, support = Reader(method.preprocessing, self.polarity, found_type), Support(method)
        support.add(encode_images(method, reader.read_all(pictures)), names)
        self.image_type_, self.model_, self.method_, self.calibration_ = found_type, name, method, calibration
        self.background_ = reader.background
        self._remember(support, pictures, names, [])
        reader.warn()

    def partial_fit(self, images: Pictures, labels: Labels | None = None, errors: Errors = "raise") -> Self:
        """Add images of new or known classes. Images that were added before are not encoded again."""
        learn = self._add if self.__sklearn_is_fitted__() else self._fit
        learn_readable(learn, *labelled(images, labels), errors)
        return self

    def _add(self, pictures: list[Picture], names: list[Label]) -> None:
        new, old = (type(group[0]) for group in (names, self._support.labels))
        if new is not old:
            raise UsageError(f"labels are {new.__name__}, but earlier labels were {old.__name__}: use one type")
        reader, support = self.new_reader(), self._support.copy()
        support.add(encode_images(self.method_, reader.read_all(pictures)), names)
        self._remember(support, pictures, names, self._given)
        reader.warn()

    def predict(self, images: Pictures, reject: float | None = None, errors: Errors = "raise") -> Array:
        """Return the class of each image. With reject, an image that is none of these gets None.

        reject: share of images of known classes that may be rejected, from 0.01 to 0.5. It is estimated on the images given to
        fit where each class has two or more, else from the model's card. errors: "skip" gives None for an image that
        cannot be read, and warns; the other methods give None or a row of NaN.
        """
        threshold = self._threshold(reject)
        logits, similarities = self._scores(images, errors)
        answers = self.classes_[logits.argmax(-1).numpy()]
        if reject is None and errors == "raise":
            return cast(Array, answers)
        known = (similarities.amax(-1) >= threshold).numpy()  # NaN, without an image, is not
        return np.array([answer if one else None for answer, one in zip(answers.tolist(), known, strict=True)], dtype=object)

    def predict_proba(self, images: Pictures, errors: Errors = "raise") -> Array:
        """Return class probabilities (n, L), in the order of classes_. Warns if they are not calibrated."""
        return cast(Array, self._probabilities(self._scores(images, errors)[0]).numpy())

    def similarities(self, images: Pictures, errors: Errors = "raise") -> Array:
        """Return the similarities of images and classes (n, L), between 0 and 1. Rows do not sum to 1."""
        similarities = self._scores(images, errors)[1]
        return cast(Array, in_order(self.method_.score(similarities), similarities).numpy())

    def score(self, images: Pictures, labels: Labels | None = None) -> float:
        """Return the accuracy."""
        pictures, names = labelled(images, labels)
        return float(np.mean(self.predict(pictures) == np.array(names)))

    def evaluate(
        self, images: Pictures, labels: Labels | None = None, reject: float | None = None, errors: Errors = "raise"
    ) -> LabelledEvaluation:
        """Return how good the answers for labelled images are: accuracy with an interval, confusion matrix, mistakes.

        Labels that fit has not seen are right if the answer is None, which needs reject.
        """
        pictures, names = labelled(images, labels)
        found = self.answers(pictures, reject, errors=errors)
        pairs = [(answer, label) for answer, label in zip(found, names, strict=True) if answer is not None]
        return judge(pairs, self.classes_.tolist(), reject)

    @overload
    def answers(self, images: Pictures, reject: float | None = None, errors: Literal["raise"] = "raise") -> list[Answer]: ...
    @overload
    def answers(self, images: Pictures, reject: float | None = None, *, errors: Literal["skip"]) -> list[Answer | None]: ...
    def answers(self, images: Pictures, reject: float | None = None, errors: Errors = "raise") -> Any:
        """Return the answer for each image, as predict does, with the scores of all classes and its path."""
        pictures = self._listed(images)
        scores = self._scores(pictures, errors)
        found = self._answers_of(*scores, reject, [source_of(picture) for picture in pictures])
        return [None if missing else one for missing, one in zip(scores[0].isnan().any(-1).tolist(), found, strict=True)]

    def answer_features(self, features: Tensor, reject: float | None = None) -> list[Answer]:
        """Return the answers for features of encode_images."""
        logits, similarities = self.confidence_.score(features).cpu().chunk(2, -1)
        return self._answers_of(logits, similarities, reject, [None] * len(features))

    def _answers_of(
        self, logits: Tensor, similarities: Tensor, reject: float | None, sources: Sequence[str | None]
    ) -> list[Answer]:
        names = cast(list[Label], self.classes_.tolist())
        threshold, far = self._threshold(reject), self.confidence_.far
        shown, chances = self.method_.score(similarities).tolist(), self._probabilities(logits).tolist()
        found = []
        for row, highest in enumerate(similarities.amax(-1).tolist()):
            best = int(logits[row].argmax())
            by_class = dict(zip(names, shown[row], strict=True)), dict(zip(names, chances[row], strict=True))
            answer = None if highest < threshold else names[best]
            found.append(Answer(answer, chances[row][best], *by_class, sources[row], highest < far))
        return found

    def nearest(self, images: Pictures) -> list[Nearest]:
        """Return the nearest support image of each image. Support images are compared one by one."""
        pictures = self._listed(images)
        found = self._nearest_of(self._by_parts(pictures, self._support.picture_logits, sum(self._support.counts), "raise"))
        return [replace(one, image=source_of(picture)) for one, picture in zip(found, pictures, strict=True)]

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
        answer = replace(self.answer_features(features)[0], image=source_of(pictures[0]))
        return Explanation(**vars(answer), nearest=replace(self.nearest_features(features)[0], image=answer.image))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the model and the support to a folder, as safetensors and JSON. Refuses a folder with other files."""
        self._check_fitted()
        params = {name: os.fspath(value) for name, value in self.get_params().items() if isinstance(value, str | os.PathLike)}
        given = [Given(label, index, source) for label, (index, source) in self._in_order()]
        features = self._support.flat()[0]
        saved = Saved(params, self.model_, self.image_type_, self.method_, self.calibration_, features, given)
        save_classifier(Path(folder), saved)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str | None = None) -> Self:
        """Load a saved classifier, to another device if one is given. Refuses an incomplete folder."""
        saved = load_classifier(Path(folder))
        loaded = cls(**cast(dict[str, Any], saved.params if device is None else saved.params | {"device": device}))
        loaded.image_type_, loaded.model_, loaded.calibration_ = saved.image_type, saved.model_name, saved.calibration
        loaded.method_ = saved.method.to(resolve_device(loaded.device))
        loaded.background_ = loaded.new_reader().background
        support = Support(loaded.method_)
        support.add(saved.features.to(loaded.method_.device), [one.label for one in saved.given])
        loaded._support, loaded.classes_ = support, np.array(support.labels)
        loaded.confidence_ = Confidence(support, loaded.calibration_)
        loaded._given = [(one.label, one.source) for one in sorted(saved.given, key=lambda one: one.index)]
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
    def accuracy_(self) -> float | None:
        """Leave-one-out accuracy on the images given to fit; None if no class has two or more."""
        self._check_fitted()
        left_out = self.confidence_.left_out
        return None if left_out is None else left_out.right / len(left_out)

    @property
    def shots_(self) -> list[int]:
        """The number of images of each class, in the order of classes_."""
        self._check_fitted()
        return self._support.counts

    @property
    def sources_(self) -> dict[Label, list[str]]:
        """The paths of the images of each class that came from files."""
        self._check_fitted()
        found: dict[Label, list[str]] = {label: [] for label in self._support.labels}
        for label, source in self._given:
            found[label] += [source] if source else []
        return found

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
        self._support, self.confidence_ = support, Confidence(support, self.calibration_)
        self._given = [*before, *((label, source_of(one)) for label, one in zip(labels, pictures, strict=True))]
        self.classes_ = np.array(support.labels)

    def _in_order(self) -> list[tuple[Label, tuple[int, str | None]]]:
        """Return the label, position and path of every support image, in the order of the support."""
        places: dict[Label, list[tuple[int, str | None]]] = {}
        for index, (label, source) in enumerate(self._given):
            places.setdefault(label, []).append((index, source))
        return [(label, place) for label in self._support.labels for place in places[label]]

    def _listed(self, images: Pictures) -> list[Picture]:
        self._check_fitted()
        return list_pictures(images)

    def _scores(self, images: Pictures, errors: Errors) -> tuple[Tensor, Tensor]:
        """Return logits and similarities (n, L); with errors="skip", rows of NaN for images that cannot be read."""
        pictures = self._listed(images)
        found = self._by_parts(pictures, self.confidence_.score, 2 * len(self.classes_), errors)
        logits, similarities = found.chunk(2, -1)
        return logits, similarities

    def _by_parts(self, pictures: Sequence[Picture], compare: Callable[[Tensor], Tensor], width: int, errors: Errors) -> Tensor:
        """Apply `compare`, whose rows have this width, to the features of all images, in batches."""
        check_errors(errors)
        reader, found, bad = self.new_reader(), torch.full((len(pictures), width), torch.nan), []
        for first in range(0, len(pictures), IMAGES):
            part = reader.try_read(pictures[first : first + IMAGES])
            if errors == "raise":
                part.all()
            if part.places:
                rows = compare(encode_images(self.method_, part.images)).cpu()
                found = found.to(rows.dtype)
                found[[first + place for place in part.places]] = rows
            bad += [pictures[first + place] for place in part.errors]
        reader.warn(stacklevel=4)
        warn_unreadable(bad, len(pictures))
        return found

    def new_reader(self) -> Reader:
        """Return a reader of images for the model."""
        return Reader(self.method_.preprocessing, self.polarity, self.image_type_)

    def _probabilities(self, logits: Tensor) -> Tensor:
        if self.confidence_.source == "none":
            warnings.warn(
                f"the probabilities of model {self.model_!r} are not calibrated: trust their order, not their size, or give "
                "two or more images of each class",
                SosnWarning,
                stacklevel=4,
            )
        return self.confidence_.probabilities(logits)

    def _threshold(self, reject: float | None) -> float:
        self._check_fitted()
        return -math.inf if reject is None else self.confidence_.threshold(reject)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this FewShotClassifier is not fitted: call fit with images and labels first")
