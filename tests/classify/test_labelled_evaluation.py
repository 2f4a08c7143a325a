"""Accuracy, interval, confusion, precision and recall of answers, counted by hand."""

import pytest
from scipy.stats import binomtest

from sosn.classify.answer import Answer
from sosn.classify.labelled_evaluation import judge, wilson
from sosn.errors import UsageError


def answer(name: str | None, probability: float) -> Answer:
    return Answer(name, probability, {"a": 0.5, "b": 0.5}, {"a": probability, "b": 1 - probability}, f"{probability}.png")


def test_answers_are_counted() -> None:
    """Three images of a, two of b, two of an unknown class c."""
    given = [
        ("a", "a", 0.9),
        ("a", "b", 0.6),
        ("a", None, 0.95),
        ("b", "b", 0.7),
        ("b", "a", 0.8),
        ("c", None, 0.5),
        ("c", "a", 0.55),
    ]
    found = judge([(answer(said, chance), label) for label, said, chance in given], ["a", "b"], 0.05)
    assert (found.images, found.right, found.unknown, found.accuracy) == (7, 3, 2, 3 / 7)
    assert found.confusion == {"a": {"a": 1, "b": 1, None: 1}, "b": {"b": 1, "a": 1}, "c": {None: 1, "a": 1}}
    scores = {one.label: (one.images, one.precision, one.recall) for one in found.per_class}
    assert scores == {"a": (3, 1 / 3, 1 / 3), "b": (2, 1 / 2, 1 / 2), None: (2, 1 / 2, 1 / 2)}
    assert [one.answer.image for one in found.mistakes] == ["0.8.png", "0.6.png", "0.55.png", "0.95.png"]  # rejected ones last
    assert found.to_json()["confusion"]["counts"] == [[1, 1, 1], [1, 1, 0], [1, 0, 1]]
    with pytest.raises(UsageError, match="labels are int, but those of the classifier are str"):
        judge([(answer("a", 0.5), 1)], ["a"], None)


@pytest.mark.parametrize(("right", "count"), [(0, 5), (3, 7), (40, 40), (1, 1)])
def test_the_interval_is_wilson_s(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilson(right, count) == pytest.approx((expected.low, expected.high), abs=1e-6)
