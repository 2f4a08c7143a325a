"""Drawings of other pens, papers and lights become like those of the training images."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import sosn
from sosn import FewShotClassifier
from sosn.classify.drawing import clean, standard, stroke_width, thinned
from sosn.classify.image_type import image_type
from sosn.classify.reader import Reader
from sosn.data.image import read_image
from sosn.encoder.preprocessing import Preprocessing

PEN = 0.047  # of Omniglot
MODEL = Preprocessing(1, 28, [0.92], [0.2], pen=PEN)


def _symbol(pen: int, side: int = 200, kind: int = 0) -> np.ndarray:
    """A triangle, a cross or a ring as (side, side, 3): 1 is ink."""
    image = Image.new("L", (side, side))
    draw, low, high = ImageDraw.Draw(image), 0.2 * side, 0.8 * side
    if kind == 0:
        draw.line([(low, high), (side / 2, low), (high, high), (low, high)], fill=255, width=pen, joint="curve")
    elif kind == 1:
        draw.line([(low, low), (high, high)], fill=255, width=pen)
        draw.line([(low, high), (high, low)], fill=255, width=pen)
    else:
        draw.ellipse((low, low, high, high), outline=255, width=pen)
    return np.repeat(np.asarray(image, dtype=np.float32)[..., None] / 255, 3, -1)


def _on(paper: Any, ink: np.ndarray) -> np.ndarray:
    return np.asarray(paper * (1 - ink)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("pen", [4, 8, 16])
def test_the_width_of_strokes_is_measured_and_becomes_that_of_the_model(pen: int) -> None:
    ink = _symbol(pen, kind=1)
    assert stroke_width(ink[..., 0] > 0.5) == pytest.approx(pen, abs=1.5)
    found = standard(_on(255, ink), PEN)
    assert stroke_width(found < 128) / len(found) == pytest.approx(PEN, rel=0.35)
    assert np.array_equal(standard(_on(255, ink), 0), _on(255, ink)[..., 0])  # a model without a pen


def test_a_skeleton_is_thin_and_in_one_piece() -> None:
    lines = thinned(_symbol(9, 100)[..., 0] > 0.5)
    assert stroke_width(lines) <= 1.5
    assert 100 < lines.sum() < 250  # the sides of the triangle have a length of 194
    assert lines.any(0).sum() > 40


def test_paper_light_and_colour_of_the_ink_do_not_matter() -> None:
    ink = _symbol(9)
    light = np.linspace(235, 140, 200)[:, None, None] * np.array([1, 0.95, 0.8])
    noise = np.random.default_rng(0).normal(0, 4, (200, 200, 3))
    expected = standard(_on(255, ink), PEN) < 128
    for image in (_on(215, ink), _on(light, 0.8 * ink), _on(light + noise, 0.8 * ink), _on(255, ink * [0.9, 0.8, 0.2])):
        found = standard(image, PEN) < 128
        assert (found & expected).sum() / (found | expected).sum() > 0.85
    assert not clean(_on(light + noise, 0 * ink)).any()  # a blank sheet


def test_a_small_drawing_in_a_corner_gets_a_usual_size_and_place() -> None:
    image = np.full((300, 200, 3), 255, np.uint8)
    image[:40, :40] = _on(255, _symbol(3, 40))
    rows, columns = (np.flatnonzero((standard(image, PEN) < 128).any(axis)) for axis in (1, 0))
    for place in (rows, columns):
        assert 0.2 < (place[-1] - place[0]) / 160 < 0.5
        assert abs((place[-1] + place[0]) / 320 - 0.5) < 0.2


def test_a_usual_drawing_stays_as_it_is() -> None:
    image = _on(255, _symbol(5, 105))
    assert torch.equal(Reader(MODEL, images="drawings").read_all([image]), read_image(image, 28, 1).unsqueeze(0))
    small = torch.as_tensor(sosn.open_bank("glyphs", "val", alphabets=10, characters=2, drawings=2).images)
    assert torch.equal(Reader(MODEL, images="drawings").read_all(list(small)), small)


def test_photos_are_not_changed() -> None:
    night = np.full((64, 64, 3), (0, 0, 90), np.uint8)  # its grey is nearly black
    night[20:40, 20:40] = (250, 200, 60)
    for images in ("photos", None):
        reader = Reader(MODEL, images=images)
        assert torch.equal(reader.read_all([night]), read_image(night, 28, 1).unsqueeze(0))
        assert reader.inverted == 0


@pytest.mark.parametrize("paper", [(235, 235, 235), (170, 160, 130), (120, 120, 120)])
def test_grey_and_tinted_sheets_are_drawings(paper: tuple[int, int, int]) -> None:
    light = np.linspace(1, 0.7, 200)[:, None, None] * np.array(paper)
    for ink in ([1, 1, 1], [0.9, 0.8, 0.3]):
        assert image_type(read_image(_on(light, _symbol(8) * ink), 64, 3).unsqueeze(0)) == "drawings"


def test_other_pens_on_grey_paper_are_recognised() -> None:
    shown = [_on(255, _symbol(4, kind=kind)) for kind in range(3)]
    asked = [_on(225, _symbol(14, kind=kind)) for kind in range(3)]
    classifier = FewShotClassifier().fit(shown, ["triangle", "cross", "ring"])
    assert (classifier.model_, classifier.image_type_) == ("omniglot", "drawings")
    assert classifier.predict(asked).tolist() == ["triangle", "cross", "ring"]
    assert FewShotClassifier("omniglot", polarity="as_is").fit(shown, [0, 1, 2]).predict(asked).tolist() != [0, 1, 2]
