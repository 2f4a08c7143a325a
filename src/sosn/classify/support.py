"""The support of a classifier: the features of every image of its classes, encoded once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.method.base import Method
from sosn.util.precision import full

Label = str | int | bool
IMAGES = 64  # encoded at once
LEFT_OUT = 2_000  # pairs of an image and a class, about, that leave-one-out compares with a network
FEW = 6_000  # images among which copies are looked for
SAME = 0.9999  # cosine of two vectors above which their images are copies of each other


class Support:
    """Classes with any number of images each, and the scores of queries against them.

    Classes are sorted. If a method's descriptors have a fixed size, that of a class is cached until the class gets another
    image. Other methods compare with all shots each time. Methods whose scores depend on the other classes need the same
    number of images in each class.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.shots: dict[Label, Tensor] = {}  # features (Z, …) of the images of a class, in the order of add
        self._described: dict[Label, Tensor] = {}

    @property
    def labels(self) -> list[Label]:
        return sorted(self.shots)

    @property
    def counts(self) -> list[int]:
        """The number of images of each class."""
        return [len(self.shots[label]) for label in self.labels]

    def copy(self) -> "Support":
        """Return a copy. Adding to it does not change this support."""
        other = Support(self.method)
        other.shots, other._described = dict(self.shots), dict(self._described)
        return other

    @torch.inference_mode()
    def add(self, features: Tensor, labels: Sequence[Label]) -> None:
        """Add the features (B, …) of images with their labels, of new or known classes."""
        rows: dict[Label, list[int]] = {}
        for row, label in enumerate(labels):
            rows.setdefault(label, []).append(row)
        for label, places in rows.items():
            known = [self.shots[label]] if label in self.shots else []
            self.shots[label] = torch.cat([*known, features[places]])
            self._described.pop(label, None)

    @torch.inference_mode()
    def logits(self, query: Tensor) -> Tensor:
        """Return the logits (Q, L) of queries (Q, …) and all classes."""
        method = self.method
        queries = method.describe(query.unsqueeze(1)).unsqueeze(0)  # a query is a class of one shot
        if method.fixed_size:
            for label in self.shots.keys() - self._described.keys():
                self._described[label] = method.describe(self.shots[label])
            classes = torch.stack([self._described[label] for label in self.labels])
            return full(method.compare(classes.unsqueeze(0), queries))[0]
        groups: dict[int, list[int]] = {}
        for place, count in enumerate(self.counts):
            groups.setdefault(count, []).append(place)
        if len(groups) > 1 and not method.classes_apart:
            raise UsageError(
                f"classes have {min(groups)} to {max(groups)} images, but method {method.name!r} needs the same number in "
                "each: give all classes the same number of images, or use a SoSN model"
            )
        shots = [self.shots[label] for label in self.labels]
        result = query.new_empty(len(query), len(shots), dtype=full(query).dtype)
        for places in groups.values():
            classes = method.describe(torch.stack([shots[place] for place in places]))
            result[:, places] = full(method.compare(classes.unsqueeze(0), queries))[0]
        return result

    @torch.inference_mode()
    def picture_logits(self, query: Tensor) -> Tensor:
        """Return the logits (Q, n) of queries (Q, …) and every single support image, class by class."""
        shots = torch.cat([self.shots[label] for label in self.labels]).unsqueeze(1)  # (n, 1, …)
        classes, queries = (self.method.describe(one).unsqueeze(0) for one in (shots, query.unsqueeze(1)))
        return full(self.method.compare(classes, queries))[0]

    def flat(self) -> tuple[Tensor, Tensor]:
        """Return the features (n, …) of all images, class by class, and the numbers of their classes (n,)."""
        features = torch.cat([self.shots[label] for label in self.labels])
        counts = torch.tensor(self.counts, device=features.device)
        return features, torch.arange(len(counts), device=features.device).repeat_interleave(counts)

    @torch.inference_mode()
    def between(self) -> float:
        """Return the mean logit of two different classes, which tells how alike the classes of a task are."""
        classes = torch.stack([self.method.describe(self.shots[label]) for label in self.labels]).unsqueeze(0)
        logits = full(self.method.compare(classes, classes))[0]
        return float((logits.sum() - logits.diagonal().sum()) / (logits.numel() - len(logits)))

    @torch.inference_mode()
    def leave_one_out(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Compare images with all classes, with their own as it is without them.

        Returns positions (m,) of the images in `flat`, logits (m, L) and numbers of their classes (m,). They are images of
        classes with two or more; of networks, which are slow, a sample; of linear methods, only images without a copy. None if
        fewer than two classes have two images (or the only class one), or if the score of a class depends on the others.
        """
        features, labels = self.flat()
        counts = torch.tensor(self.counts, device=labels.device)
        rows = torch.arange(len(labels), device=labels.device)[counts[labels] > 1]
        if int((counts > 1).sum()) < min(2, len(counts)) or not self.method.classes_apart:
            return None
        if not self.method.linear:
            rows = rows[:: -(-len(rows) * len(counts) // LEFT_OUT)]
        elif len(features) <= FEW:
            copies = (features @ features.mT > SAME).sum(1) > 1
            rows = rows[~copies[rows]] if not copies[rows].all() else rows
        logits = self.logits(features[rows])
        starts = counts.cumsum(0) - counts
        for place, number in enumerate(labels[rows].tolist()):
            count = int(counts[number])
            others = torch.arange(count - 1, device=rows.device)
            others = starts[number] + others + (others >= rows[place] - starts[number])  # all images of its class but itself
            rest, query = self.method.describe(features[others]), self.method.describe(features[rows[place], None])
            logits[place, number] = full(self.method.compare(rest[None, None], query[None, None])).flatten()[0]
        return rows.cpu(), logits.cpu(), labels[rows].cpu()


@torch.inference_mode()
def encode_images(method: Method, images: Tensor) -> Tensor:
    """Return the features (B, …) of images, encoded in batches with the running statistics of batch norm.

    Refuses methods that adapt to whole episodes.
    """
    if not method.describes_images:
        raise UsageError(
            f"method {method.name!r} adapts to whole episodes and cannot learn classes one by one: use another model, for "
            "instance SoSN"
        )
    method.eval()
    parts = []
    for part in images.split(IMAGES):
        parts.append(method.encode(part.to(method.device)))
    return torch.cat(parts)
