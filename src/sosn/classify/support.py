"""What a classifier remembers of the classes it was shown: the features of every picture, encoded once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.method.base import Method
from sosn.util.precision import full

Label = str | int | bool
IMAGES = 64  # encoded at once


class Support:
    """Classes with any number of pictures each, and the scores of queries against them.

    Classes stand in sorted order. Where a method's descriptions have a fixed size, that of a class is kept until it gets
    another picture. Other methods compare with all shots anew; those whose scores depend on the other classes too need the
    same number of pictures in each.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.shots: dict[Label, Tensor] = {}  # features (Z, …) of the pictures of a class, in the order in which they came
        self._described: dict[Label, Tensor] = {}

    @property
    def labels(self) -> list[Label]:
        return sorted(self.shots)

    @property
    def counts(self) -> list[int]:
        """Pictures of each class."""
        return [len(self.shots[label]) for label in self.labels]

    def copy(self) -> "Support":
        """Another memory of the same pictures, which can be added to by itself."""
        other = Support(self.method)
        other.shots, other._described = dict(self.shots), dict(self._described)
        return other

    @torch.inference_mode()
    def add(self, features: Tensor, labels: Sequence[Label]) -> None:
        """Remember pictures (B, …), each of a class, new or known."""
        rows: dict[Label, list[int]] = {}
        for row, label in enumerate(labels):
            rows.setdefault(label, []).append(row)
        for label, own in rows.items():
            known = [self.shots[label]] if label in self.shots else []
            self.shots[label] = torch.cat([*known, features[own]])
            self._described.pop(label, None)

    @torch.inference_mode()
    def logits(self, query: Tensor) -> Tensor:
        """Similarities before squashing of queries (Q, …) and all classes: (Q, L)."""
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
                f"classes have {min(groups)} to {max(groups)} images, and method {method.name!r} compares a query with all "
                "classes at once: give each the same number of images, or use a SoSN model"
            )
        shots = [self.shots[label] for label in self.labels]
        result = query.new_empty(len(query), len(shots), dtype=full(query).dtype)
        for places in groups.values():
            classes = method.describe(torch.stack([shots[place] for place in places]))
            result[:, places] = full(method.compare(classes.unsqueeze(0), queries))[0]
        return result

    @torch.inference_mode()
    def picture_logits(self, query: Tensor) -> Tensor:
        """Queries (Q, …) against every single picture, as if each were a class of its own: (Q, pictures), class by class."""
        shots = torch.cat([self.shots[label] for label in self.labels]).unsqueeze(1)  # (n, 1, …)
        classes, queries = (self.method.describe(one).unsqueeze(0) for one in (shots, query.unsqueeze(1)))
        return full(self.method.compare(classes, queries))[0]


@torch.inference_mode()
def encode_images(method: Method, images: Tensor) -> Tensor:
    """Features (B, …) of images, a part at a time, with batch norm's running statistics.

    Refuses methods that learn from an episode as a whole.
    """
    if not method.describes_images:
        raise UsageError(
            f"method {method.name!r} adapts itself to whole episodes and cannot remember classes one by one: use another "
            "model, for instance SoSN"
        )
    method.eval()
    parts = []
    for part in images.split(IMAGES):
        parts.append(method.encode(part.to(method.device)))
    return torch.cat(parts)
