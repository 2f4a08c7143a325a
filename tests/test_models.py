"""Models that come with the package."""

import json

import pytest

import sosn
from sosn.evaluation import evaluate
from sosn.models import model_path, shipped_models


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_every_model_is_small_and_has_a_whole_card(name: str) -> None:
    card = shipped_models()[name]
    path = model_path(name)
    assert path.stat().st_size == card["bytes"] < 1_000_000
    assert {"title", "data", "split", "accuracy", "ci95", "episodes", "recipe", "terms", "limits", "parameters"} <= set(card)
    assert sosn.load(name).parameter_count() == card["parameters"]
    assert json.loads(json.dumps(card)) == card


def test_the_glyphs_model_tells_unseen_characters_apart() -> None:
    result = evaluate(sosn.load("glyphs"), sosn.open_bank("glyphs", "test"), query=5, episodes=40)
    assert result.accuracy > 0.93
