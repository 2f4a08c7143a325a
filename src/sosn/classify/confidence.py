"""How sure an answer is: probabilities, the threshold of "none of these" and leave-one-out accuracy, on the user's images."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from sosn.classify.linear import CHOSEN_ON, LinearHead, fit_linear
from sosn.classify.support import Support
from sosn.errors import UsageError
from sosn.evaluation.calibration import PERCENTS, Calibration, check_reject, fit_temperature, probabilities

BALANCED = 3  # most times as many images in one class as in another for a linear classifier
PRIOR = 8  # images that the model's card weighs as much as
HELD_OUT = "held-out"  # split of a calibration on held-out images of the same classes
FAR = 0.01  # share of known images that lie as far from all classes as an image that is marked


@dataclass(frozen=True)
class LeftOut:
    """Scores of support images, each compared with its class without it."""

    logits: Tensor  # (m, L), of the classifier
    similarities: Tensor  # (m, L), logits of the method
    labels: Tensor  # (m,), numbers of the classes

    @property
    def right(self) -> int:
        return int((self.logits.argmax(-1) == self.labels).sum())

    def __len__(self) -> int:
        return len(self.labels)


class Confidence:
    """Scores queries against a support, and says how sure that is.

    If all classes have two or more images, a linear classifier separates them, where the method's features allow it.
    Temperature and thresholds come from the support by leave-one-out, and from the model's card; each as far as it is there.
    """

    def __init__(self, support: Support, calibration: Calibration | None) -> None:
        names = tuple(map(str, support.labels))
        if calibration is not None and calibration.classes not in ((), names):  # a tuned model with other classes
            calibration = None
        self.support, self.calibration = support, calibration
        self.way, self.shot = len(support.labels), min(support.counts)

    @cached_property
    def head(self) -> LinearHead | None:
        """The linear classifier, or None: of classes with very unequal numbers of images it would prefer the large ones."""
        balanced = self.shot > 1 and max(self.support.counts) <= BALANCED * self.shot
        if not self.support.method.linear or self.way < 2 or not balanced or 2 * self.way > CHOSEN_ON:
            return None
        return fit_linear(*self.support.flat(), self.way)

    @cached_property
    def left_out(self) -> LeftOut | None:
        """Leave-one-out scores of images of classes with two or more; None if there are too few, or no way to score them."""
        found = None if self._tuned else self.support.leave_one_out()
        if found is None:
            return None
        rows, similarities, labels = found
        if self.head is None:
            features = self.support.flat()[0][rows]
            return LeftOut(self._means(features, rows) if self._by_image else similarities, similarities, labels)
        both = torch.isin(rows, self.head.rows.cpu())
        place = {int(row): number for number, row in enumerate(self.head.rows)}
        logits = self.head.left_out.cpu()[[place[int(row)] for row in rows[both]]]
        return LeftOut(logits, similarities[both], labels[both])

    def score(self, features: Tensor) -> Tensor:
        """Logits of the classes and similarities (logits of the method) of queries, side by side: (Q, 2·L)."""
        similarities = self.support.logits(features)
        if self.head is not None:
            return torch.cat((self.head.logits(features), similarities), -1)
        return torch.cat((self._means(features) if self._by_image else similarities, similarities), -1)

    @property
    def _by_image(self) -> bool:
        """Whether a class is as similar as its images are on average: the mean of many images is nearer to everything."""
        return self.support.method.linear and len(set(self.support.counts)) > 1

    @torch.inference_mode()
    def _means(self, features: Tensor, rows: Tensor | None = None) -> Tensor:
        """Mean logits (Q, L) of queries and the images of a class; rows: of support images, without each itself."""
        single, labels = self.support.picture_logits(features), self.support.flat()[1]
        member = torch.nn.functional.one_hot(labels, self.way).to(single.dtype)
        total, counts = single @ member, member.sum(0).expand(len(single), -1)
        if rows is not None:
            own = member[rows]
            total = total - own * single.gather(1, rows.to(single.device).unsqueeze(1))
            counts = counts - own
        return total / counts.clamp_min(1)

    @cached_property
    def source(self) -> Literal["images", "card", "both", "none"]:
        """What probabilities and thresholds are calibrated on: the support, the model's card, both or nothing."""
        if self.left_out is None:
            return "none" if self.calibration is None else "card"
        return "images" if self.calibration is None else "both"

    @cached_property
    def temperature(self) -> float:
        """Temperature of the probabilities. The card's, or 1, counts as a few images beside those of the support."""
        usual = 1.0
        if self.calibration is not None and (self.head is None) == (not self._tuned or not self.support.method.linear):
            usual = self.calibration.temperature(self.way, self.shot)
        if self.left_out is None or self.way < 2:
            return usual
        return fit_temperature(self.left_out.logits, self.left_out.labels, usual, PRIOR)

    @property
    def _tuned(self) -> bool:
        """Whether the model was tuned on these classes: then leaving out an image says little, and its calibration all."""
        return self.calibration is not None and bool(self.calibration.classes)

    def probabilities(self, logits: Tensor) -> Tensor:
        return probabilities(logits, self.temperature)

    def threshold(self, reject: float) -> float:
        """Similarity below which a query is none of these, so that about the share `reject` of known queries is rejected.

        With enough images it is a quantile of their leave-one-out similarities; with fewer, the card's distribution is moved to
        where theirs is. Refuses if there is neither.
        """
        check_reject(reject)
        known = torch.empty(0) if self.left_out is None else self.left_out.similarities.amax(-1).double().sort().values
        place = math.floor(reject * (len(known) + 1) + 1e-9)  # conformal: a new image falls below with this probability
        if place >= 1:
            return float(known[place - 1])
        if self.calibration is None:
            raise UsageError(
                f"reject={reject} needs {math.ceil(1 / reject) - 1} images, two or more of each class, or a model with a "
                "calibration: add images, raise reject, or use a shipped model"
            )
        card = self.between + self.calibration.threshold(self.way, self.shot, reject)
        if not len(known):
            return card
        middle = self.between + self.calibration.threshold(self.way, max(self.shot - 1, 1), PERCENTS[-1] / 100)
        moved = card + len(known) / (len(known) + PRIOR) * (float(known.median()) - middle)
        return min(moved, float(known[0]))  # a smaller share never gives a higher threshold

    @cached_property
    def between(self) -> float:
        """What the thresholds of the card are added to: 0, or for linear methods the mean similarity of two classes."""
        return self.support.between() if self.support.method.linear and self.way > 1 else 0.0

    @cached_property
    def far(self) -> float:
        """Similarity below which a query lies far from all classes; −∞ if nothing is known about that."""
        try:
            return self.threshold(FAR)
        except UsageError:
            return -math.inf
