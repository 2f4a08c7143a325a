"""The linear classifier, leave-one-out scores, temperatures and thresholds, against what they mean."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sosn.classify.confidence import HELD_OUT, Confidence
from sosn.classify.linear import SCALE, STRENGTHS, fit_linear
from sosn.classify.support import Support
from sosn.errors import UsageError
from sosn.evaluation.calibration import PERCENTS, Calibration, fit_temperature
from sosn.evaluation.calibration import Confidence as Size
from sosn.method import NearestPixels, TwoOrders
from sosn.method.two_orders import SCALE as SCALE_OF_COSINES

pytestmark = pytest.mark.usefixtures("one_thread")


def clusters(shots: list[int], spread: float = 0.5, size: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors around a centre for each class, and their labels."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(shots)).repeat_interleave(torch.tensor(shots))
    centres = torch.randn(len(shots), size, generator=source)
    vectors = centres[labels] + spread * torch.randn(len(labels), size, generator=source)
    return torch.nn.functional.normalize(vectors, dim=-1), labels


def support_of(shots: list[int], spread: float = 0.5) -> Support:
    support = Support(TwoOrders(channels=1, input_size=28))
    features, labels = clusters(shots, spread)
    support.add(features, labels.tolist())
    return support


def card(threshold: float = 0.0, temperature: float = 1.0) -> Calibration:
    thresholds = tuple(threshold + percent / 100 for percent in PERCENTS)
    return Calibration("tests", "val", (Size(2, 1, temperature, thresholds, 0, 0, 0, 0, 0, 0, 0),))


def ridge(features: Tensor, labels: Tensor, classes: int, strength: float) -> Tensor:
    """Weights of ridge regression in which classes weigh the same, by its normal equations."""
    x, counts = features.double(), labels.bincount(minlength=classes)
    weights = (len(labels) / (classes * counts[labels])).double()
    targets = torch.nn.functional.one_hot(labels, classes).double() - 1 / classes
    left, right = x.T @ (weights[:, None] * x), x.T @ (weights[:, None] * targets)
    solved: Tensor = torch.linalg.solve(left + strength * torch.eye(x.shape[1]), right)
    return solved


def test_the_linear_classifier_is_ridge_regression_with_the_best_leave_one_out_error() -> None:
    features, labels = clusters([4, 4, 4])
    head = fit_linear(features, labels, 3)
    weights = ridge(features, labels, 3, head.strength)
    torch.testing.assert_close(head.logits(features), (SCALE * features.double() @ weights).float(), rtol=1e-4, atol=1e-4)
    targets = torch.nn.functional.one_hot(labels, 3).double() - 1 / 3
    errors = {}
    for strength in STRENGTHS:  # by fitting anew without each image; its weight among the others stays as it was
        left_out = []
        for row in range(len(labels)):
            rest = torch.arange(len(labels)) != row
            x, y = features[rest].double(), targets[rest]
            left_out.append(features[row].double() @ torch.linalg.solve(x.T @ x + strength * torch.eye(x.shape[1]), x.T @ y))
        errors[strength] = float((torch.stack(left_out) - targets).square().sum())
        if strength == head.strength:
            torch.testing.assert_close(head.left_out, (SCALE * torch.stack(left_out)).float(), rtol=1e-3, atol=1e-3)
    assert head.strength == min(errors, key=errors.__getitem__)


def test_classes_with_more_images_do_not_weigh_more() -> None:
    features, labels = clusters([2, 30])
    weights = ridge(features, labels, 2, 100.0)
    means = torch.stack([features[labels == one].mean(0) for one in (0, 1)])
    contrast = weights[:, 0] - weights[:, 1]
    assert torch.cosine_similarity(contrast, (means[0] - means[1]).double(), dim=0) > 0.98  # of the strongest regularisation
    head = fit_linear(features, labels, 2)
    assert (head.logits(features).argmax(-1) == labels).all()


def test_leave_one_out_compares_an_image_with_its_class_without_it() -> None:
    support = support_of([2, 3])
    found = support.leave_one_out()
    assert found is not None
    rows, logits, labels = found
    features, _ = support.flat()
    assert labels.tolist() == [0, 0, 1, 1, 1]
    for row in rows.tolist():
        rest = Support(support.method)
        keep = [one for one in range(5) if one != row]
        rest.add(features[keep], labels[keep].tolist())
        torch.testing.assert_close(logits[row], rest.logits(features[row, None])[0])
    assert support_of([1, 3]).leave_one_out() is None


@pytest.mark.parametrize("shots", [[1, 1], [2, 3]])
def test_two_classes_with_two_images_give_a_linear_classifier(shots: list[int]) -> None:
    confidence = Confidence(support_of(shots), None)
    assert (confidence.head is not None) == (min(shots) > 1)
    assert confidence.source == ("none" if confidence.head is None else "images")
    logits, similarities = confidence.score(clusters([5, 5])[0]).chunk(2, -1)
    assert torch.equal(logits, similarities) == (confidence.head is None)


def test_a_method_without_vectors_has_no_linear_classifier() -> None:
    method = NearestPixels(channels=1, input_size=4)
    support = Support(method)
    support.add(method.encode(torch.rand(4, 1, 4, 4)), [0, 0, 1, 1])
    confidence = Confidence(support, None)
    assert confidence.head is None
    assert confidence.left_out is not None
    assert len(confidence.left_out) == 4


def test_the_usual_temperature_counts_as_some_images() -> None:
    logits, labels = torch.tensor([[3.0, 0.0]]).repeat(10, 1), torch.tensor([0] * 7 + [1] * 3)
    alone, with_card = (fit_temperature(logits, labels, 1.0, weight) for weight in (0.0, 1e6))
    assert alone == pytest.approx(3 / math.log(7 / 3), rel=1e-3)  # 70% sure
    assert with_card == pytest.approx(1.0, rel=1e-3)
    assert 1 < fit_temperature(logits, labels, 1.0, 8.0) < alone


def test_a_threshold_rejects_its_share_of_new_images() -> None:
    known = Confidence(support_of([20, 20], spread=0.8), None)
    queries = clusters([500, 500], spread=0.8)[0]  # the same centres
    for reject in (0.05, 0.2):
        assert float((known.score(queries)[:, 2:].amax(-1) < known.threshold(reject)).double().mean()) == pytest.approx(
            reject, abs=0.06
        )


def test_few_images_move_the_threshold_of_the_card_to_where_they_are() -> None:
    one, few = (Confidence(support_of(shots), card(2.0)) for shots in ([1, 1], [3, 3]))
    assert one.threshold(0.05) == pytest.approx(one.between + 2.05)
    assert few.left_out is not None
    median = float(few.left_out.similarities.amax(-1).median())
    moved = 6 / (6 + 8) * (median - few.between - 2.5)
    assert few.threshold(0.05) == pytest.approx(few.between + 2.05 + moved, rel=1e-5)
    assert (one.source, few.source) == ("card", "both")


def test_reject_without_images_and_card_says_what_is_missing() -> None:
    confidence = Confidence(support_of([3, 3]), None)
    with pytest.raises(UsageError, match=r"reject=0\.05 needs 19 images"):
        confidence.threshold(0.05)
    assert confidence.threshold(0.2) > -math.inf
    assert confidence.far == -math.inf
    with pytest.raises(UsageError, match=r"from 0\.01 to 0\.5"):
        confidence.threshold(0.7)


def test_very_unequal_classes_are_compared_by_their_images() -> None:
    confidence = Confidence(support_of([4, 1, 4]), None)
    assert confidence.head is None
    assert confidence.left_out is not None
    assert confidence.left_out.labels.tolist() == [0] * 4 + [2] * 4
    features, labels = confidence.support.flat()
    queries = clusters([3, 3, 3], seed=1)[0]
    expected = torch.stack([SCALE_OF_COSINES * (queries @ features[labels == one].T).mean(1) for one in range(3)], 1)
    torch.testing.assert_close(confidence.score(queries)[:, :3], expected, rtol=1e-4, atol=1e-4)
    first = SCALE_OF_COSINES * (features[0] @ features[1:4].T).mean()
    torch.testing.assert_close(confidence.left_out.logits[0, 0], first, rtol=1e-4, atol=1e-4)


def test_many_classes_leave_out_images_of_which_another_stays() -> None:
    features, labels = clusters([2] * 60, spread=0.05, size=40)
    head = fit_linear(features, labels, 60)
    assert float((head.left_out.argmax(-1) == labels).double().mean()) > 0.95


def test_more_images_than_are_needed_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sosn.classify.linear.CHOSEN_ON", 9)
    monkeypatch.setattr("sosn.classify.linear.FITTED_ON", 9)
    features, labels = clusters([20, 3, 30], spread=0.2)
    head = fit_linear(features, labels, 3)
    assert labels[head.rows].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (head.logits(features).argmax(-1) == labels).all()


def test_copies_of_an_image_do_not_make_a_threshold() -> None:
    support = Support(TwoOrders(channels=1, input_size=28))
    features, labels = clusters([4, 4])
    support.add(torch.cat((features, features[:1], features[:1])), [*labels.tolist(), 0, 0])
    found = support.leave_one_out()
    assert found is not None
    assert len(found[0]) == 7  # all but the copied one
    assert float(found[1].max()) < 19.99


def test_a_smaller_share_never_gives_a_higher_threshold() -> None:
    confidence = Confidence(support_of([10, 10]), card(50.0))
    thresholds = [confidence.threshold(share) for share in (0.01, 0.02, 0.04, 0.05, 0.1, 0.3)]
    assert thresholds == sorted(thresholds)


def test_the_calibration_of_a_tuned_model_holds_for_its_classes_alone() -> None:
    support = support_of([6, 6])
    mine, other = (replace(card(), split=HELD_OUT, classes=names) for names in (("0", "1"), ("oak", "birch")))
    assert Confidence(support, mine).left_out is None
    assert Confidence(support, other).calibration is None
    assert Confidence(support, other).source == "images"
