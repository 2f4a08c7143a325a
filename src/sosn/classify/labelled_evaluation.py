"""How good the answers for labelled images are."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sosn.classify.answer import Answer
from sosn.classify.support import Label
from sosn.errors import UsageError

Z95 = 1.959964  # standard normal quantile of a two-sided 95% interval
SHOWN = 10  # mistakes in JSON


@dataclass(frozen=True)
class Judged:
    """An answer beside the true label of the image."""

    answer: Answer
    label: Label
    known: bool  # whether the label is a class of the classifier

    @property
    def right(self) -> bool:
        """A known image is right with its class, an unknown one with None."""
        return self.answer.answer == (self.label if self.known else None)

    def to_json(self) -> dict[str, Any]:
        answer = self.answer
        return {
            "image": answer.image, "label": self.label, "answer": answer.answer,
            "likeliest": answer.likeliest, "probability": answer.probability,
        }  # fmt: skip


@dataclass(frozen=True)
class ClassScore:
    """The answers for one class; a label of None stands for all images of unknown classes."""

    label: Label | None
    images: int
    answers: int  # how often this class was the answer
    right: int

    @property
    def precision(self) -> float | None:
        """Share of right ones among the answers with this class, or None if there are none."""
        return self.right / self.answers if self.answers else None

    @property
    def recall(self) -> float | None:
        """Share of right answers among the images of this class, or None if there are none."""
        return self.right / self.images if self.images else None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "precision": self.precision, "recall": self.recall}


@dataclass(frozen=True)
class LabelledEvaluation:
    """Answers for labelled images: accuracy with its 95% interval (Wilson's), confusion matrix, scores of classes, mistakes."""

    judged: list[Judged]
    classes: list[Label]  # of the classifier
    reject: float | None

    @property
    def images(self) -> int:
        return len(self.judged)

    @property
    def right(self) -> int:
        return sum(one.right for one in self.judged)

    @property
    def unknown(self) -> int:
        """The number of images whose label is not a class of the classifier."""
        return sum(not one.known for one in self.judged)

    @property
    def accuracy(self) -> float:
        return self.right / self.images

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.images)

    @cached_property
    def confusion(self) -> dict[Label, dict[Label | None, int]]:
        """How often each label (first key) got each answer (second key; None: none of these). Zeros are left out."""
        found: dict[Label, dict[Label | None, int]] = {}
        for (label, answer), count in Counter((one.label, one.answer.answer) for one in self.judged).items():
            found.setdefault(label, {})[answer] = count
        return {label: found[label] for label in self.labels}

    @property
    def labels(self) -> list[Label]:
        """The labels of the images: classes of the classifier first, then unknown ones."""
        known = set(self.classes)
        return sorted({one.label for one in self.judged}, key=lambda label: (label not in known, label))

    @property
    def columns(self) -> list[Label | None]:
        """The possible answers: the classes and, if images can be rejected, None."""
        return [*self.classes, *([] if self.reject is None else [None])]

    @cached_property
    def per_class(self) -> list[ClassScore]:
        """The scores of every class, and of None, which stands for unknown images, if there are any or reject is given."""
        truths = Counter(one.label if one.known else None for one in self.judged)
        answers = Counter(one.answer.answer for one in self.judged)
        right = Counter(one.answer.answer for one in self.judged if one.right)
        named: list[Label | None] = [*self.classes, *([None] if self.unknown or self.reject is not None else [])]
        return [ClassScore(label, truths[label], answers[label], right[label]) for label in named]

    @property
    def mistakes(self) -> list[Judged]:
        """The wrong answers, the most confident first; rejected images last."""
        wrong = [one for one in self.judged if not one.right]
        return sorted(wrong, key=lambda one: (one.answer.answer is None, -one.answer.probability))

    def __str__(self) -> str:
        low, high = (100 * one for one in self.interval)
        return f"{self.right} of {self.images} right: {100 * self.accuracy:.1f}% (95% interval {low:.1f} to {high:.1f}%)"

    def to_json(self) -> dict[str, Any]:
        rows = [[self.confusion[label].get(answer, 0) for answer in self.columns] for label in self.labels]
        return {
            "images": self.images,
            "right": self.right,
            "unknown": self.unknown,
            "reject": self.reject,
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            "per_class": [one.to_json() for one in self.per_class],
            "confusion": {"labels": self.labels, "answers": self.columns, "counts": rows},
            "mistakes": [one.to_json() for one in self.mistakes[:SHOWN]],
        }


def judge(answers: Sequence[tuple[Answer, Label]], classes: list[Label], reject: float | None) -> LabelledEvaluation:
    """Return the evaluation of answers with their true labels. Refuses none at all, and labels of another type."""
    if not answers:
        raise UsageError("there are no images to evaluate: none could be read")
    given, known = type(answers[0][1]), type(classes[0])
    if given is not known:
        raise UsageError(f"labels are {given.__name__}, but those of the classifier are {known.__name__}: use one type")
    names = set(classes)
    return LabelledEvaluation([Judged(answer, label, label in names) for answer, label in answers], classes, reject)


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95% interval for a share of independent images."""
    share, scale = right / count, 1 + Z95**2 / count
    middle = (share + Z95**2 / (2 * count)) / scale
    half = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2)) / scale
    return 0.0 if right == 0 else middle - half, 1.0 if right == count else middle + half  # without rounding errors
