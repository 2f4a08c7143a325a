"""A regularised linear classifier on the features of a support with two or more images of each class."""

from dataclasses import dataclass

import torch
from torch import Tensor

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)  # of the regularisation
SCALE = 12.0  # of logits: their usual temperature is then about 1 (0.063 to 0.112 without it, on four sets of photos)
CHOSEN_ON = 2_000  # images, at most, on which the strength is chosen
FITTED_ON = 6_000  # images, at most, on which the classifier is fitted


@dataclass(frozen=True)
class LinearHead:
    """Weights (D, L) of a linear classifier, and its leave-one-out logits.

    left_out (m, L) are the logits of support images `rows`, each by a classifier that was fitted without that image (with the
    weights of classes as they are with it).
    """

    weights: Tensor
    strength: float
    left_out: Tensor
    rows: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Logits (Q, L) of features (Q, D)."""
        return SCALE * (features @ self.weights)


def fit_linear(features: Tensor, labels: Tensor, classes: int) -> LinearHead:
    """Fit ridge regression to one-hot labels, and choose its strength by the leave-one-out error.

    features: (n, D). labels: (n,), numbers in 0…classes−1 in ascending order, each at least twice. Classes weigh the same,
    whatever the number of their images. The leave-one-out error has a closed form: the residual of an image divided by the
    diagonal of (K + λ)⁻¹.
    """
    rows = _some_of_each(labels, classes, CHOSEN_ON)
    root, target, kernel = _weighted(features[rows].double(), labels[rows], classes)
    values, vectors = torch.linalg.eigh(kernel)
    values = values.clamp_min(0)
    best: tuple[float, float, Tensor] | None = None
    for strength in STRENGTHS:
        solved = vectors @ ((vectors.mT @ target) / (values + strength).unsqueeze(-1))
        diagonal = (vectors.square() / (values + strength)).sum(-1, keepdim=True)
        residual = solved / diagonal
        error = float(residual.square().sum())
        if best is None or error < best[0]:
            best = error, strength, (target - residual) / root
    assert best is not None
    strength, left_out = best[1:]
    used = _some_of_each(labels, classes, FITTED_ON)
    root, target, kernel = _weighted(features[used].double(), labels[used], classes)
    kernel.diagonal().add_(strength)
    weights = features[used].double().mT @ (root * torch.linalg.solve(kernel, target))
    return LinearHead(weights.to(features.dtype), strength, (SCALE * left_out).to(features.dtype), rows)


def _some_of_each(labels: Tensor, classes: int, most: int) -> Tensor:
    """Return rows with the first images of each class, as many of each as there may be in all, and two at least."""
    counts = torch.bincount(labels, minlength=classes)
    number = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels]  # within its class
    return (number < (max(2, most // classes) if len(labels) > most else len(labels))).nonzero().flatten()


def _weighted(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return square roots of the weights of images (n, 1), weighted targets (n, L) and the weighted kernel (n, n)."""
    counts = torch.bincount(labels, minlength=classes).clamp_min(1)
    root = (len(labels) / (classes * counts[labels])).double().sqrt().unsqueeze(-1)
    target = root * (torch.nn.functional.one_hot(labels, classes).double() - 1 / classes)
    return root, target, root * (features @ features.mT) * root.mT
