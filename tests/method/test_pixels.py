"""The floor: nearest pixels."""

import math

import pytest
import torch

from sosn.episode import Episode
from sosn.method import NearestPixels


def test_scores_are_the_sigmoid_of_the_cosine_to_the_mean_inverted_image() -> None:
    generator = torch.Generator().manual_seed(0)
    support = torch.rand(2, 3, 2, 1, 8, 8, generator=generator)
    query = torch.rand(2, 4, 1, 8, 8, generator=generator)
    scores = NearestPixels(channels=1, input_size=8)(Episode(support, query))
    assert scores.shape == (2, 4, 3)
    for e, q, c in ((e, q, c) for e in range(2) for q in range(4) for c in range(3)):
        mean = [sum(1 - support[e, c, z].flatten()[i].item() for z in range(2)) / 2 for i in range(64)]
        ink = [1 - value for value in query[e, q].flatten().tolist()]
        dot = sum(a * b for a, b in zip(mean, ink, strict=True))
        cosine = dot / math.hypot(*mean) / math.hypot(*ink)
        assert scores[e, q, c].item() == pytest.approx(1 / (1 + math.exp(-cosine)), rel=1e-5)


def test_a_copy_of_a_support_image_belongs_to_its_class() -> None:
    support = torch.rand(1, 5, 1, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    scores = NearestPixels()(Episode(support, support[:, :, 0]))
    assert scores[0].argmax(-1).tolist() == [0, 1, 2, 3, 4]


def test_blank_images_have_finite_scores() -> None:
    blank = torch.full((1, 2, 1, 1, 28, 28), 255, dtype=torch.uint8)
    assert NearestPixels()(Episode(blank, blank[:, :, 0])).isfinite().all()


def test_nearest_pixels_learns_nothing() -> None:
    assert NearestPixels().parameter_count() == 0
