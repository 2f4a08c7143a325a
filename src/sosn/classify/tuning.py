"""Fine-tune a model on new classes, and keep the result only if it is more accurate on held-out images."""

import copy
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sosn.checkpoint.registry import load_with_recipe
from sosn.checkpoint.storage import check_no_model, write_model
from sosn.checkpoint.training_classes import TrainingClasses, training_classes
from sosn.classify.background import Inverting
from sosn.classify.confidence import HELD_OUT, PRIOR, Confidence
from sosn.classify.image_type import fitting_model, type_of_pictures
from sosn.classify.reader import Reader
from sosn.classify.support import Support, encode_images
from sosn.data.augmentation import AugmentationSection, augment
from sosn.data.bank import SPLITS, Bank
from sosn.data.listing import list_classes
from sosn.data.sampler import EpisodeSampler
from sosn.errors import DataError, TrainingError, UsageError
from sosn.evaluation.calibration import CALIBRATION_FILE, Calibration, fit_confidence, fit_temperature
from sosn.method.base import Method
from sosn.recipe.sections import DataSection
from sosn.util.files import write_atomically
from sosn.util.seeding import generator

FOLDS = 3
LEAST = 6  # images per class: two are held out, and of the four others an episode uses one as support and one as query
WAY, QUERY = 5, 2  # of the episode of a step
LEARNING_RATE = 3e-4
GENTLE = AugmentationSection(translate=0.05, zoom=0.1, turn=5, jitter=0.1)


@dataclass(frozen=True)
class Tuned:
    """Correct answers before and after tuning on the same held-out images, and the tuned model if it is better.

    calibration: of the tuned model, measured on held-out images.
    """

    pictures: int
    before: int
    after: int
    spread: float  # standard error of after − before, over images
    method: Method | None
    calibration: Calibration | None = None

    def to_json(self) -> dict[str, Any]:
        names = ("pictures", "before", "after", "spread")
        return {name: getattr(self, name) for name in names} | {"kept": self.method is not None}


def tune(
    method: Method, bank: Bank, steps: int = 100, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Tuned:
    """Tune a model on episodes of a bank's classes, and measure by three-fold cross-validation whether that helps.

    In each fold, a copy is tuned on the other two thirds of the images. It then classifies the held-out third with the other
    images as support, and so does the untuned model. If tuning gives more correct answers, by more than one standard error, a
    copy is tuned on all images and returned. Batch norm keeps its running statistics, because there are too few images for
    new ones. Refuses an untrained model, fewer than 2 classes, and a class with fewer than 6 images.
    """
    method.check_trained()
    if steps < 1:
        raise UsageError(f"steps is {steps}; it must be 1 or more")
    if len(bank.names) < 2:
        raise DataError(f"there is only {len(bank.names)} class: tuning needs 2 or more")
    smallest = int(bank.counts.argmin())
    if int(bank.counts[smallest]) < LEAST:
        raise DataError(
            f"class {bank.names[smallest]!r} has {int(bank.counts[smallest])} images; tuning needs {LEAST} or more of each: "
            "add some, or classify without tuning"
        )
    total = (FOLDS + 1) * steps
    scores: list[tuple[Tensor, Tensor]] = []
    labels: list[Tensor] = []
    for fold, (known, held_out) in enumerate(_folds(bank, seed)):
        tuned = _tuned(method, known, steps, seed, partial(_report, progress, fold * steps, total))
        scores.append((_scores(method, known, held_out), _scores(tuned, known, held_out)))
        labels.append(held_out.labels)
    truth = torch.cat(labels)
    before, after = (torch.cat(found) for found in zip(*scores, strict=True))  # (pictures, 2, L)
    answers = torch.stack([(found[:, 0].argmax(-1) == truth).double() for found in (before, after)], 1)
    difference = answers[:, 1] - answers[:, 0]
    spread = float(difference.std()) * math.sqrt(len(difference))
    gained = float(difference.sum())
    kept = None
    if gained > spread:
        kept = _tuned(method, bank, steps, seed, partial(_report, progress, FOLDS * steps, total))
    first, second = (int(column.sum()) for column in answers.unbind(1))
    shot = int(bank.counts.min()) * (FOLDS - 1) // FOLDS
    return Tuned(len(answers), first, second, spread, kept, _calibration(after, truth, shot, bank.names) if kept else None)


def _report(progress: Callable[[int, int], None] | None, before: int, total: int, done: int) -> None:
    if progress:
        progress(before + done, total)


def _folds(bank: Bank, seed: int) -> list[tuple[Bank, Bank]]:
    """Return banks of the images to tune on and of the held-out ones. Each fold has a third of every class."""
    order = torch.cat([torch.randperm(int(count), generator=generator("folds", seed)) for count in bank.counts])
    part = order % FOLDS
    return [(_rows(bank, part != fold), _rows(bank, part == fold)) for fold in range(FOLDS)]


def _rows(bank: Bank, chosen: Tensor) -> Bank:
    return Bank(bank.images[chosen], bank.labels[chosen], bank.names)


def _tuned(method: Method, bank: Bank, steps: int, seed: int, report: Callable[[int], Any]) -> Method:
    """Return a copy of a model after some steps on episodes of a bank."""
    tuned = copy.deepcopy(method).eval()
    query = min(QUERY, int(bank.counts.min()) - 1)
    sampler = EpisodeSampler(bank, min(WAY, len(bank.names)), 1, query)
    optimiser = torch.optim.Adam(tuned.parameters(), LEARNING_RATE)
    for step in range(steps):
        draw = generator("tune", seed, step)
        episode = augment(sampler.draw(1, draw), GENTLE, draw).to(tuned.device)
        loss = tuned.loss(episode, tuned.own_loss)
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss is {float(loss)} at step {step} of tuning: check the model and the images")
        optimiser.zero_grad()
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.step()
        report(step + 1)
    return tuned


def _scores(method: Method, known: Bank, held_out: Bank) -> Tensor:
    """Return logits and similarities (n, 2, L) of held-out images, as a classifier with the known images as support."""
    support = Support(method)
    support.add(encode_images(method, known.images), _numbers(known))
    confidence = Confidence(support, None)
    logits, similarities = confidence.score(encode_images(method, held_out.images)).cpu().chunk(2, -1)
    return torch.stack((logits, similarities - confidence.between), 1)


def _calibration(scores: Tensor, labels: Tensor, shot: int, names: Sequence[str]) -> Calibration:
    """Fit a calibration to held-out scores (n, 2, L). An image counts as unknown to the classes other than its own."""
    logits, similarities = scores.unbind(1)
    own = torch.nn.functional.one_hot(labels, logits.shape[-1]).bool()
    others = similarities[~own].view(len(labels), -1)
    found = fit_confidence(similarities[None], labels[None], others[None], shot)
    found = replace(
        found,
        temperature=fit_temperature(logits, labels, 1.0, PRIOR),
        accuracy=float((logits.argmax(-1) == labels).double().mean()),
    )
    return Calibration("your images", HELD_OUT, (found,), tuple(sorted(names)))


def _numbers(bank: Bank) -> Sequence[int]:
    return [int(label) for label in bank.labels]


def _training_classes(support: Path, names: Sequence[str]) -> list[TrainingClasses]:
    """Return the classes of a folder; if it is a split, also under the name of its parent folder."""
    folder = support.expanduser().absolute()
    places = (folder, folder.parent) if folder.name in SPLITS else (folder,)
    return [TrainingClasses(DataSection(f"folder:{place}"), frozenset(names)) for place in places]


def tune_model(
    support: Path, model: str, out: Path, steps: int, seed: int, progress: Callable[[int, int], None] | None = None,
    polarity: Inverting = "auto",
) -> tuple[str, Tuned]:  # fmt: skip
    """Tune a model on a folder of classes and, if that helps, write it to a folder. Returns the model's name and the result.

    Images are read as in FewShotClassifier, and "auto" chooses the same model. The classes count as training classes of the
    tuned model.
    """
    check_no_model(out)
    files, labels = list_classes(support)
    found_type = type_of_pictures(files)
    name = fitting_model(found_type, min(Counter(labels).values())) if model == "auto" else model
    method, recipe = load_with_recipe(name)
    reader = Reader(method.preprocessing, polarity, found_type)
    images = reader.read_all(files)
    reader.warn()
    names = tuple(dict.fromkeys(labels))
    bank = Bank(images, torch.tensor([names.index(label) for label in labels]), names)
    result = tune(method, bank, steps, seed, progress)
    if result.method is not None:
        tuned = replace(recipe, title=f"{name}, tuned on {len(names)} classes of {support.name}")
        known = (*_training_classes(support, names), *training_classes(name))
        write_model(out, result.method, tuned.to_table(), [one.to_json() for one in known])
        if result.calibration is not None:
            write_atomically(out / CALIBRATION_FILE, json.dumps(result.calibration.to_json()).encode())
    return name, result
