"""Probabilities that mean what they say, and "none of these"."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import sosn
from sosn.confidence import (
    CALIBRATION_FILE,
    PERCENTS,
    Calibration,
    Confidence,
    auroc,
    calibration_error,
    fit_confidence,
    fit_temperature,
    judge,
    measure,
    probabilities,
    read_calibration,
)
from sosn.errors import CheckpointError, DataError, UntrainedError, UsageError
from sosn.models import calibration_of, shipped_models


def _confidence(way: int, shot: int, first: float = 0.0) -> Confidence:
    return Confidence(way, shot, 1.0, tuple(first + percent for percent in PERCENTS), 100, 0.9, 0.01, 0.1, 0.8, 0.05, 0.4)


def _sampled(temperature: float, count: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits whose softmax at this temperature is the true distribution of the labels."""
    generator = sosn.generator("calibration")
    logits = 4 * torch.randn(count, 5, generator=generator)
    labels = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator).squeeze(1)
    return logits, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_made_the_labels_is_found_and_leaves_no_calibration_error(temperature: float) -> None:
    logits, labels = _sampled(temperature)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(temperature, rel=0.05)
    assert calibration_error(probabilities(logits, found), labels) < 0.015


def test_one_class_has_no_temperature() -> None:
    assert fit_temperature(torch.randn(10, 1), torch.zeros(10, dtype=torch.int64)) == 1.0


def test_the_calibration_error_of_hand_made_answers() -> None:
    chances = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    labels = torch.tensor([0, 1, 0, 1])
    expected = (2 * abs(0.5 - 0.9) + 2 * abs(1.0 - 0.6)) / 4  # bins of 0.9 and of 0.6
    assert calibration_error(chances, labels) == pytest.approx(expected, abs=1e-6)


def test_auroc_counts_pairs_in_the_right_order_and_ties_half() -> None:
    high, low = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0])
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in high.tolist() for b in low.tolist())
    assert auroc(high, low) == pytest.approx(wins / 6)


def test_a_threshold_refuses_its_share_of_known_queries_and_no_more() -> None:
    logits, labels = _sampled(1.0, 5_000)
    unknown = torch.randn(3_000, 5, generator=sosn.generator("unknown"))
    fitted = fit_confidence(logits, labels, unknown, way=5, shot=1)
    top = logits.amax(-1)
    for percent, threshold in zip(PERCENTS, fitted.thresholds, strict=True):
        share = float((top < threshold - 1e-4).double().mean())
        assert percent / 100 - 0.002 < share <= percent / 100
    other, other_labels = _sampled(2.0, 1_000)
    figures = judge(fitted, other, other_labels, unknown)
    assert figures.refused == pytest.approx(float((other.amax(-1) < fitted.thresholds[4]).double().mean()), abs=1e-4)
    assert figures.detected == pytest.approx(float((unknown.amax(-1) < fitted.thresholds[4]).double().mean()), abs=1e-4)
    assert figures.auroc == pytest.approx(auroc(other.amax(-1), unknown.amax(-1)), abs=1e-4)


def test_the_nearest_size_that_is_not_easier_counts() -> None:
    sizes = [_confidence(way, shot) for way in (1, 5, 20) for shot in (1, 5)]
    calibration = Calibration("glyphs", "val", tuple(sizes))
    for (way, shot), expected in {
        (1, 1): (1, 1), (4, 9): (1, 5), (5, 1): (5, 1), (7, 4): (5, 1), (19, 5): (5, 5), (300, 100): (20, 5)
    }.items():  # fmt: skip
        found = calibration.at(way, shot)
        assert (found.way, found.shot) == expected
    only = Calibration("glyphs", "val", (_confidence(5, 5),))
    assert only.at(2, 1).way == 5


def test_shares_outside_the_measured_ones_are_refused_and_those_between_round_down() -> None:
    calibration = Calibration("glyphs", "val", (_confidence(5, 1),))
    assert calibration.threshold(5, 1, 0.05) == 5.0
    assert calibration.threshold(5, 1, 0.057) == 5.0
    assert calibration.threshold(5, 1, 0.07) == 7.0
    assert calibration.threshold(5, 1, 0.29) == 20.0
    for reject in (0, 0.005, 0.51, 1, -1, math.nan):
        with pytest.raises(UsageError, match=r"from 0\.01 to 0\.5"):
            calibration.threshold(5, 1, reject)


def test_a_calibration_survives_its_file_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    calibration = Calibration("glyphs", "val", (_confidence(5, 1), _confidence(1, 1, -2.5)))
    path = tmp_path / CALIBRATION_FILE
    assert read_calibration(path) is None
    path.write_text(json.dumps(calibration.to_json()))
    assert read_calibration(path) == calibration
    for damage in ("{", "{}", json.dumps(calibration.to_json() | {"sizes": []})):
        path.write_text(damage)
        with pytest.raises(CheckpointError, match="measure it anew"):
            read_calibration(path)


def test_measuring_needs_a_trained_model_and_enough_classes() -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=3, drawings=4)
    with pytest.raises(UntrainedError):
        measure(sosn.SoSN(channels=1, input_size=28), bank, "val", "glyphs")
    with pytest.raises(DataError, match="too few"):
        measure(sosn.load("glyphs"), bank, "val", "glyphs", query=10)


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_every_shipped_model_is_calibrated(name: str) -> None:
    calibration = calibration_of(name)
    assert calibration is not None
    assert calibration.split == "val"
    for size in calibration.sizes:
        assert size.ece < 0.05
        assert size.ece <= size.ece_before + 0.01
        assert size.auroc > 0.55
        assert abs(size.refused - 0.05) < 0.02
    assert {(size.way, size.shot) for size in calibration.sizes} >= {(1, 1), (5, 1), (5, 5)}


def test_unknown_characters_are_refused_and_few_known_ones_are() -> None:
    """On test classes, which neither training nor calibration saw."""
    bank = sosn.open_bank("glyphs", "test")
    classifier = sosn.FewShotClassifier("glyphs")
    refused, detected, right, chances = [], [], [], []
    names = np.array(bank.names)
    for seed in range(6):
        chosen = np.random.default_rng(seed).permutation(len(names))
        drawings = [bank.class_images(name) for name in names[chosen[:10]]]
        classifier.fit([own[0] for own in drawings[:5]], range(5))
        answers = classifier.answers([one for own in drawings for one in own[1:9]], reject=0.05)
        known, unknown = answers[:40], answers[40:]
        refused += [one.answer is None for one in known]
        detected += [one.answer is None for one in unknown]
        best = [max(one.probabilities, key=lambda label: one.probabilities[label]) for one in known]
        right += [answer == place // 8 for place, answer in enumerate(best)]
        chances += [one.probability for one in known]
    assert np.mean(refused) < 0.09
    assert np.mean(detected) > 0.5
    assert abs(np.mean(right) - np.mean(chances)) < 0.04


def test_a_card_is_data_and_can_be_told_from_a_folder(tmp_path: Path) -> None:
    shipped = calibration_of("glyphs")
    assert shipped is not None
    changed = dataclasses.replace(shipped, data="elsewhere")
    sosn.FewShotClassifier("glyphs").fit([np.zeros((8, 8), np.uint8)], ["a"]).save(tmp_path)
    (tmp_path / CALIBRATION_FILE).write_text(json.dumps(changed.to_json()))
    found = calibration_of(tmp_path)
    assert found is not None
    assert found.data == "elsewhere"
