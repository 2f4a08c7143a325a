"""Calibrated probabilities and "none of these"."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import sosn
from sosn.checkpoint.registry import shipped_models
from sosn.episode import Episode
from sosn.errors import CheckpointError, DataError, UntrainedError, UsageError
from sosn.evaluation.calibration import (
    CALIBRATION_FILE,
    PERCENTS,
    SURE,
    Calibration,
    Confidence,
    auroc,
    calibration_error,
    calibration_of,
    evaluate_confidence,
    fit_confidence,
    fit_temperature,
    measure,
    probabilities,
    read_calibration,
    safe_thresholds,
)
from sosn.evaluation.protocol import draw_indices
from sosn.method import MAML


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
    logits, labels = (part.unflatten(0, (4_000, 25)) for part in _sampled(1.0, 100_000))
    unknown = torch.randn(100, 30, 5, generator=sosn.generator("unknown"))
    fitted = fit_confidence(logits, labels, unknown, shot=1)
    assert (fitted.way, fitted.episodes, fitted.queries) == (5, 4_000, 100_000)
    top = logits.amax(-1)
    for percent, threshold in zip(PERCENTS, fitted.thresholds, strict=True):
        share = float((top < threshold).double().mean())
        assert percent / 100 - 0.01 < share < percent / 100
    other, other_labels = (part.unflatten(0, (40, 25)) for part in _sampled(2.0, 1_000))
    figures = evaluate_confidence(fitted, other, other_labels, unknown)
    assert (figures.episodes, figures.queries) == (40, 1_000)
    assert figures.refused == pytest.approx(float((other.amax(-1) < fitted.thresholds[4]).double().mean()), abs=1e-4)
    assert figures.detected == pytest.approx(float((unknown.amax(-1) < fitted.thresholds[4]).double().mean()), abs=1e-4)
    assert figures.auroc == pytest.approx(auroc(other.amax(-1).flatten(), unknown.amax(-1).flatten()), abs=1e-4)


def _episodes(count: int, key: int) -> torch.Tensor:
    """Highest logits (count, 25): those of one episode have something in common, half of their variance."""
    source = sosn.generator("episodes", key)
    return torch.randn(count, 1, generator=source) + torch.randn(count, 25, generator=source)


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, 600])
def test_a_threshold_holds_on_other_episodes_where_the_plain_quantile_does_every_other_time(count: int) -> None:
    quantile, safe = [], []
    for repetition in range(40):
        top, other = _episodes(count, 2 * repetition), _episodes(count, 2 * repetition + 1)
        threshold = safe_thresholds(top)[PERCENTS.index(5)]
        quantile.append(float((other < top.flatten().quantile(0.05)).double().mean()))
        safe.append(float((other < threshold).double().mean()))
    assert 0.3 < np.mean(np.array(quantile) > 0.05) < 0.7
    assert np.mean(np.array(safe) > 0.05) <= 0.05
    assert np.mean(safe) > {60: 0.005, 600: 0.03}[count]  # the more episodes, the nearer to what is allowed


def test_queries_of_one_episode_are_not_taken_for_independent_ones() -> None:
    """The same values, once in episodes that have something in common, once shuffled."""
    top = _episodes(200, 0)
    shuffled = top.flatten()[torch.randperm(top.numel(), generator=sosn.generator("shuffled"))].view_as(top)
    assert all(alike < apart for alike, apart in zip(safe_thresholds(top)[:8], safe_thresholds(shuffled)[:8], strict=True))


@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_thresholds_rise_with_the_share_are_those_of_a_seed_and_exist_for_few_episodes(count: int) -> None:
    top = _episodes(count, 5)
    found = safe_thresholds(top)
    assert len(found) == len(PERCENTS)
    assert list(found) == sorted(found)
    assert found == safe_thresholds(top)
    assert all((top < threshold).double().mean() <= percent / 100 for percent, threshold in zip(PERCENTS, found, strict=True))


def test_a_threshold_is_that_of_resamples_by_hand() -> None:
    """Episodes whose queries are all alike: the median of three of seven exceeds a value if two of the three do."""
    top = torch.arange(7.0).unsqueeze(1).expand(7, 4)
    chance = [3 * ((1 + k) / 7) ** 2 - 2 * ((1 + k) / 7) ** 3 for k in range(7)]  # that the median is k or less
    assert chance[0] > 1 - SURE  # so the lowest episode it is
    assert safe_thresholds(top)[PERCENTS.index(50)] == 0.0
    large = torch.arange(1_000.0).unsqueeze(1).expand(1_000, 4)
    expected = 500 - 3.09 * 1_000 * (0.25 / 500) ** 0.5  # of 500 independent draws
    assert safe_thresholds(large)[PERCENTS.index(50)] == pytest.approx(expected, abs=12)


def test_a_calibration_without_the_number_of_its_episodes_is_read() -> None:
    table = Calibration("glyphs", "val", (dataclasses.replace(_confidence(5, 1), episodes=9),)).to_json()
    assert Calibration.from_json(table).sizes[0].episodes == 9
    del table["sizes"][0]["episodes"]
    assert Calibration.from_json(table).sizes[0].episodes == 0


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


def test_the_expected_accuracy_is_of_no_fewer_classes_and_no_more_shots() -> None:
    sizes = [_confidence(way, shot) for way in (20, 1, 2, 5) for shot in (5, 1)]
    calibration = Calibration("glyphs", "val", tuple(sizes))
    for (way, shot), expected in {
        (1, 1): (2, 1), (2, 5): (2, 5), (3, 4): (5, 1), (5, 9): (5, 5), (6, 1): (20, 1), (300, 100): (20, 5)
    }.items():  # fmt: skip
        found = calibration.expected(way, shot)
        assert found is not None
        assert (found.way, found.shot) == expected
    assert Calibration("glyphs", "val", (_confidence(1, 5),)).expected(3, 5) is None


def test_with_fewer_classes_than_were_measured_the_temperature_is_that_of_the_fewest_and_not_of_one() -> None:
    sizes = tuple(
        dataclasses.replace(_confidence(way, shot), temperature=way + shot / 10) for way in (1, 5, 20) for shot in (1, 5)
    )
    found = Calibration("glyphs", "val", sizes)
    assert [found.temperature(way, 1) for way in (1, 2, 4, 5, 19, 30)] == [1.1, 5.1, 5.1, 5.1, 5.1, 20.1]
    assert found.temperature(3, 7) == 5.5
    assert Calibration("glyphs", "val", sizes[:2]).temperature(3, 1) == 1.1


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
        with pytest.raises(CheckpointError, match="measure it again"):
            read_calibration(path)


def test_measuring_needs_a_trained_model_and_enough_classes() -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=3, drawings=4)
    with pytest.raises(UntrainedError):
        measure(sosn.SoSN(channels=1, input_size=28), bank, "val", "glyphs")
    with pytest.raises(DataError, match="too few"):
        measure(sosn.load("glyphs"), bank, "val", "glyphs", query=10)
    maml = MAML(channels=1, input_size=28)
    maml.trained = True
    with pytest.raises(UsageError, match="cannot be calibrated"):
        measure(maml, bank, "val", "glyphs", query=2, shots=[1])


@pytest.mark.slow
def test_measuring_logs_the_number_of_episodes_and_skips_sizes_that_the_bank_is_too_small_for() -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=4, drawings=4)
    bank = bank.subset(bank.names[:4])
    said: list[str] = []
    found = measure(sosn.load("glyphs"), bank, "val", "glyphs", (2, 3, 4), (1, 3), query=2, episodes=6, log=said.append)
    assert [(one.way, one.shot, one.episodes, one.queries) for one in found.sizes] == [(2, 1, 15, 60), (3, 1, 10, 60)]
    assert said[0].startswith("2-way 1-shot, 15 episodes")
    assert found == measure(sosn.load("glyphs"), bank, "val", "glyphs", (2, 3), (1,), query=2, episodes=6)


@pytest.mark.slow
def test_thresholds_are_evaluated_on_episodes_that_they_were_not_fitted_to() -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=8, drawings=6)
    model = sosn.load("glyphs")
    (found,) = measure(model, bank, "val", "glyphs", (3,), (1,), query=2, episodes=12).sizes
    right = []
    for seed in (0, 1):
        support, queries = draw_indices(sosn.EpisodeSampler(bank, 6, 1, 2), 20, seed)  # three classes more are not shown
        tops, answers = [], []
        with torch.inference_mode():
            for shown, asked in zip(support[:, :3], queries[:, :6], strict=True):
                logits = model.logits(Episode(bank.images[shown].unsqueeze(0), bank.images[asked].unsqueeze(0)))[0]
                tops.append(logits.amax(-1))
                answers.append(logits.argmax(-1) == torch.tensor([0, 0, 1, 1, 2, 2]))
        right.append(float(torch.cat(answers).double().mean()))
        if seed == 0:
            expected = safe_thresholds(torch.stack(tops))
    assert found.thresholds == pytest.approx(expected, abs=1e-3)
    assert found.accuracy == pytest.approx(right[1], abs=1e-4)
    assert right[0] != right[1]


def test_thresholds_of_even_steps_are_the_steps() -> None:
    assert safe_thresholds(torch.arange(100.0).view(1, 100)) == PERCENTS


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_every_shipped_model_is_calibrated(name: str) -> None:
    calibration = calibration_of(name)
    assert calibration is not None
    assert calibration.split == "val"
    for size in calibration.sizes:
        assert size.ece < 0.05
        assert size.ece <= size.ece_before + 0.01
        assert size.auroc > 0.55
    assert {(size.way, size.shot) for size in calibration.sizes} >= {(1, 1), (5, 1), (5, 5)}


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_no_shipped_model_rejects_more_known_images_than_allowed(name: str) -> None:
    """On episodes that its thresholds were not fitted on. Where it fails: benchmarks/calibrate_model.py."""
    calibration = calibration_of(name)
    assert calibration is not None
    for size in calibration.sizes:
        assert size.queries >= 5_000
        assert size.episodes
        assert 0.02 < size.refused <= 0.05, f"{size.way}-way {size.shot}-shot"


@pytest.mark.slow
def test_unknown_characters_are_rejected_and_few_known_ones_are() -> None:
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


def test_a_calibration_is_read_from_a_card_or_a_folder(tmp_path: Path) -> None:
    shipped = calibration_of("glyphs")
    assert shipped is not None
    changed = dataclasses.replace(shipped, data="elsewhere")
    sosn.FewShotClassifier("glyphs").fit([np.zeros((8, 8), np.uint8)], ["a"]).save(tmp_path)
    (tmp_path / CALIBRATION_FILE).write_text(json.dumps(changed.to_json()))
    found = calibration_of(tmp_path)
    assert found is not None
    assert found.data == "elsewhere"
