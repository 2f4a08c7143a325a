"""Classify many files, for `sosn classify`."""

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sosn.checkpoint.registry import shipped_models
from sosn.classify.answer import Answer, Nearest
from sosn.classify.classifier import FewShotClassifier
from sosn.classify.confidence import HELD_OUT
from sosn.classify.image_type import FITTING
from sosn.classify.labelled_evaluation import LabelledEvaluation, judge, wilson
from sosn.classify.support import IMAGES, Label, encode_images
from sosn.data.listing import image_files, skipped, walk
from sosn.errors import DataError, SosnWarning, UsageError

FEW = 5  # images of a class below which more help most
CALIBRATED = {  # what probabilities and reject are based on
    "images": "Probabilities are calibrated on your images.",
    "card": "Probabilities are calibrated on the data of the model's card.",
    "both": "Probabilities are calibrated on your images and the data of the model's card.",
    "none": "Probabilities are not calibrated: trust their order, not their size.",
}


@dataclass(frozen=True)
class Classified:
    """A file with its answer, or with the error that prevented one."""

    image: str
    answer: Answer | None = None
    nearest: Nearest | None = None
    error: str | None = None
    label: Label | None = None  # the true class, if it is known
    right: bool | None = None  # whether the answer is right, if that is known

    def to_json(self) -> dict[str, Any]:
        if self.answer is None:
            return {"image": self.image, "error": self.error}
        document: dict[str, Any] = {**vars(self.answer), "nearest": self.nearest.source if self.nearest else None}
        return document if self.label is None else document | {"label": self.label, "right": self.right}


def find_images(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the given files, and all image files in the given folders and their subfolders, sorted.

    Warns of files in folders that are not images. Refuses a missing file, and a folder without images.
    """
    found: list[Path] = []
    for place in map(Path, places):
        if not place.is_dir():
            if not place.exists():
                raise DataError(f"there is no file or folder {str(place)!r}")
            found.append(place)
            continue
        inside = [image_files(folder) for folder in walk(place)]
        others = [file for _, rest in inside for file in rest]
        if not any(files for files, _ in inside):
            raise DataError(f"folder {str(place)!r} contains no images: give a folder with JPEG, PNG or other image files")
        if others:
            warnings.warn(skipped(others, place), SosnWarning, stacklevel=2)
        found += [file for files, _ in inside for file in files]
    if not found:
        raise UsageError("there are no images to classify: give files or folders")
    return found


def classify_files(
    classifier: FewShotClassifier,
    files: list[Path],
    reject: float | None = None,
    nearest: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Classified]:
    """Classify files. A file that cannot be read gets an error instead of an answer.

    nearest: also return the nearest support image. Each file is read and encoded once.
    """
    reader = classifier.new_reader()
    results: list[Classified] = []
    for first in range(0, len(files), IMAGES):
        part = [str(file) for file in files[first : first + IMAGES]]
        read = reader.try_read(part)
        answers: dict[int, Answer] = {}
        neighbours: dict[int, Nearest] = {}
        if read.places:
            features = encode_images(classifier.method_, read.images)
            found = classifier.answer_features(features, reject)
            answers = {place: replace(one, image=part[place]) for place, one in zip(read.places, found, strict=True)}
            neighbours = dict(zip(read.places, classifier.nearest_features(features), strict=True)) if nearest else {}
        for place, file in enumerate(part):
            error = read.errors.get(place)
            results.append(Classified(file, answers.get(place), neighbours.get(place), str(error) if error else None))
        if progress:
            progress(len(results), len(files))
    reader.warn()
    return results


def judge_files(
    classifier: FewShotClassifier, results: Sequence[Classified], labels: Sequence[Label], reject: float | None
) -> tuple[list[Classified], LabelledEvaluation]:
    """Return classified files with their labels and whether they are right, and the evaluation of those with an answer."""
    answered = [(one.answer, label) for one, label in zip(results, labels, strict=True) if one.answer]
    evaluation = judge(answered, classifier.classes_.tolist(), reject)
    verdicts = iter(evaluation.judged)
    marked = [
        replace(one, label=label, right=next(verdicts).right if one.answer else None)
        for one, label in zip(results, labels, strict=True)
    ]
    return marked, evaluation


def expectation(classifier: FewShotClassifier) -> str:
    """Describe the accuracy to expect for these classes with this model, in a few sentences."""
    counts, name, images = classifier.shots_, classifier.model_, classifier.image_type_
    shots = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    each = f"{shots} {'image' if shots == '1' else 'images'}"
    if len(counts) == 1:
        return (
            f"Model {name!r}; one class of {images} with {each}. With a single class, every image gets that class: add a "
            "second class, or use --reject for 'none of these'."
        )
    sentences = [f"Model {name!r}; {len(counts)} classes of {images} with {each} each."]
    left_out, calibration = classifier.confidence_.left_out, classifier.calibration_
    card = shipped_models().get(name)
    if card and name not in FITTING[images]:
        sentences.append(f"It was not trained on {images}: its answers may be little better than guesses.")
    if left_out is not None:
        low, high = wilson(left_out.right, len(left_out))
        sentences.append(
            f"Accuracy on your own images, each left out in turn: {100 * left_out.right / len(left_out):.0f}% "
            f"({left_out.right} of {len(left_out)}; 95% interval {100 * low:.0f}–{100 * high:.0f}%)."
        )
    elif calibration and classifier.confidence_.calibration and calibration.split == HELD_OUT:
        sentences.append(f"Accuracy on held-out images of your classes: {100 * calibration.sizes[0].accuracy:.0f}%.")
    elif card and name in FITTING[images]:
        figures, measured = card, calibration.expected(len(counts), min(counts)) if calibration else None
        if calibration and measured and (measured.way, measured.shot) != (card["way"], card["shot"]):
            figures = asdict(measured) | {"data": calibration.data, "split": calibration.split}
        sentences.append(
            f"Accuracy on {figures['way']}-way {figures['shot']}-shot tasks of {figures['data']} ({figures['split']} classes): "
            f"{100 * figures['accuracy']:.1f}%. With two or more images of each class you see it on your own."
        )
    sentences.append(CALIBRATED[classifier.confidence_.source])
    if min(counts) < FEW:
        sentences.append("More images of each class help most.")
    return " ".join(sentences)
