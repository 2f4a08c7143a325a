"""A regularised linear classifier on the features of a support with two or more images of each class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sosn.util.seeding import generator

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)  # of the regularisation; the largest gives nearest class means
SCALE = 12.0  # of logits: their usual temperature is then 1 (benchmarks/photos.py)
CHOSEN_ON = 1_000  # images, at most, on which the strength is chosen


@dataclass(frozen=True)
class LinearHead:
    """Weights (D, L) of a linear classifier, and its leave-one-out logits.

    left_out (m, L) are the logits of support images `rows`, each by a classifier that was fitted without that image.
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

    features: (n, D). labels: (n,), numbers in 0…classes−1, each at least twice. Classes weigh the same, whatever the number of
    their images. The leave-one-out error has a closed form: the residual of an image divided by the diagonal of (K + λ)⁻¹.
    """
    rows = torch.arange(len(features), device=features.device)
    if len(rows) > CHOSEN_ON:
        rows = torch.randperm(len(rows), generator=generator("linear"))[:CHOSEN_ON].to(features.device)
    root, target, values, vectors = _decomposed(features[rows].double(), labels[rows], classes)
    best: tuple[float, float, Tensor] | None = None
    for strength in STRENGTHS:
        solved = vectors @ ((vectors.mT @ target) / (values + strength).unsqueeze(-1))
        diagonal = (vectors.square() / (values + strength)).sum(-1, keepdim=True)
        residual = solved / diagonal
        error = float(residual.square().sum())
        if best is None or error < best[0]:
            best = error, strength, (target - residual) / root
    assert best is not None
    strength = best[1]
    if len(rows) < len(features):
        root, target, values, vectors = _decomposed(features.double(), labels, classes)
    solved = vectors @ ((vectors.mT @ target) / (values + strength).unsqueeze(-1))
    weights = features.double().mT @ (root * solved)
    return LinearHead(weights.to(features.dtype), strength, (SCALE * best[2]).to(features.dtype), rows)


def _decomposed(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return square roots of the weights of images, weighted targets, and eigenvalues and -vectors of the weighted kernel."""
    counts = torch.bincount(labels, minlength=classes).clamp_min(1)
    root = (len(labels) / (classes * counts[labels])).double().sqrt().unsqueeze(-1)
    target = root * (torch.nn.functional.one_hot(labels, classes).double() - 1 / classes)
    kernel = root * (features @ features.mT) * root.mT
    values, vectors = torch.linalg.eigh(kernel)
    return root, target, values.clamp_min(0), vectors
