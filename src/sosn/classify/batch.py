"""The job of `sosn classify`: many files in, an answer or a reason for each, free of printing."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sosn.checkpoint.registry import shipped_models
from sosn.classify.background import inverted, warn_inverted
from sosn.classify.classifier import Alike, Answer, FewShotClassifier
from sosn.classify.image_type import FITTING
from sosn.classify.support import IMAGES
from sosn.data.image import read_picture
from sosn.data.listing import image_files
from sosn.errors import DataError, SosnWarning, UsageError


@dataclass(frozen=True)
class Classified:
    """A file, and the answer or the reason why there is none."""

    image: str
    answer: Answer | None = None
    alike: Alike | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        if self.answer is None:
            return {"image": self.image, "error": self.error}
        told: dict[str, Any] = {"image": self.image, **vars(self.answer)}
        return told if self.alike is None else told | {"most_alike": self.alike.source}


def find_images(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Files as they are given, and of folders all image files in them and below, sorted. Refuses a folder without any.

    How many files of folders are no images by name is told.
    """
    found: list[Path] = []
    others = 0
    for place in map(Path, places):
        if not place.is_dir():
            found.append(place)
            continue
        inside = [image_files(folder) for folder in _folders(place, set())]
        others += sum(len(left) for _, left in inside)
        if not any(files for files, _ in inside):
            raise DataError(f"folder {str(place)!r} has no image files in it: give a folder with JPEG, PNG or other images")
        found += [file for files, _ in inside for file in files]
    if not found:
        raise UsageError("there are no images to classify: give files or folders")
    if others:
        warnings.warn(f"{others} files in the folders are no images by name and left out", SosnWarning, stacklevel=2)
    return found


def _folders(place: Path, seen: set[Path]) -> Iterator[Path]:
    """A folder and those below it, each once, whatever links lead to it."""
    if place.resolve() in seen:
        return
    seen.add(place.resolve())
    yield place
    for entry in sorted(place.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _folders(entry, seen)


def classify_files(
    classifier: FewShotClassifier,
    files: list[Path],
    reject: float | None = None,
    alike: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Classified]:
    """Classify files; one that cannot be read gets an error in place of an answer, and the others go on.

    alike: name the most alike picture of the support too. How many images were inverted to the ground that the model knows is
    told once, at the end.
    """
    size, channels = classifier.method_.preprocessing.source, classifier.method_.preprocessing.channels
    told: list[Classified] = []
    count = 0
    for first in range(0, len(files), IMAGES):
        images: dict[str, Tensor] = {}
        errors: dict[str, str] = {}
        part = [str(file) for file in files[first : first + IMAGES]]
        for file in part:
            try:
                images[file] = read_picture(file, size, channels)
            except DataError as error:
                errors[file] = str(error)
        shown, own = inverted(torch.stack(list(images.values())), classifier.ground_) if images else (torch.empty(0), 0)
        pictures, count = list(shown), count + own  # which the classifier turns no more
        answers = dict(zip(images, classifier.answers(pictures, reject), strict=True)) if images else {}
        nearest = dict(zip(images, classifier.most_alike(pictures), strict=True)) if images and alike else {}
        told += [Classified(file, answers.get(file), nearest.get(file), errors.get(file)) for file in part]
        if progress:
            progress(len(told), len(files))
    warn_inverted(count, sum(one.error is None for one in told), classifier.ground_, stacklevel=2)
    return told


def expectation(classifier: FewShotClassifier) -> str:
    """What to expect of these classes with this model, in a few sentences."""
    counts = classifier.shots_
    shots = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    images = "image" if shots == "1" else "images"
    if len(counts) == 1:
        return (
            f"model {classifier.model_!r}; one class of {classifier.kind_} with {shots} {images}, which is the answer to "
            "anything: give a second class, or --reject for 'none of these'."
        )
    words = [f"model {classifier.model_!r}; {len(counts)} classes of {classifier.kind_} with {shots} {images} each."]
    card = shipped_models().get(classifier.model_)
    if card and classifier.model_ not in FITTING[classifier.kind_]:
        words.append(f"It was not trained on {classifier.kind_}: its answers may be little better than guesses.")
    elif card:
        told, calibration = card, classifier.calibration_
        measured = calibration.promised(len(counts), min(counts)) if calibration else None
        if calibration and measured and (measured.way, measured.shot) != (card["way"], card["shot"]):
            told = asdict(measured) | {"data": calibration.data, "split": calibration.split}
        words.append(
            f"It is right on {100 * told['accuracy']:.1f}% of queries in {told['way']}-way {told['shot']}-shot tasks of "
            f"{told['data']} ({told['split']} classes); expect less on images of other kinds."
        )
    elif classifier.kind_ == "photos":
        words.append("A network this small is right on about half of 5-way photos from one example each.")
    if classifier.calibration_ is None:
        words.append("Its probabilities are not calibrated: their order counts, not their size.")
    if min(counts) < 5:
        words.append("More images of each class help most.")
    if classifier.kind_ == "photos":
        words.append("Stronger on photos: `sosn tune` where there are some tens of each class, or --encoder timm:NAME.")
    return " ".join(words)
