"""Shipped models."""

from dataclasses import replace
from pathlib import Path

import pytest

import sosn
from sosn.checkpoint.registry import model_path, shipped_models
from sosn.errors import DataError
from sosn.evaluation.protocol import evaluate
from sosn.method import NearestPixels
from sosn.recipe.library import load_recipe
from sosn.recipe.recipe import from_table


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_every_model_is_small_and_has_a_whole_card(name: str) -> None:
    card = shipped_models()[name]
    path = model_path(name)
    assert path.stat().st_size == card["bytes"] < 1_000_000
    assert {"title", "data", "split", "accuracy", "ci95", "episodes", "terms", "limits", "parameters"} <= set(card)
    assert ("recipe" in card) != ("packaged" in card)
    assert "calibration" in card
    assert sosn.load(name).parameter_count() == card["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(shipped_models().keys() - {"photos"}))  # its photos are not a dataset of the package
def test_the_figure_of_a_card_is_of_the_episodes_that_are_drawn_today(name: str) -> None:
    card = shipped_models()[name]
    try:
        bank = sosn.open_bank(card["data"], card["split"])
    except DataError:
        pytest.skip(f"{card['data']} is not prepared here")
    pixels = evaluate(NearestPixels(bank.channels, bank.size), bank, card["way"], card["shot"], card["query"], card["episodes"])
    assert pixels.fingerprint == card["fingerprint"]


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("omniglot", "omniglot-best-20w1s"),
        ("omniglot-5shot", "omniglot-best-20w5s"),
        ("mini-imagenet", "mini-imagenet-best-5w1s"),
        ("mini-imagenet-5shot", "mini-imagenet-best-5w5s"),
    ],
)
def test_the_best_models_are_of_the_best_recipes_as_they_are(name: str, recipe: str) -> None:
    card = shipped_models()[name]
    assert replace(from_table(card["recipe"], name), title="") == replace(load_recipe(recipe), title="")
    assert card["title"] == load_recipe(recipe).title
    assert from_table(card["first_stage"], name) == load_recipe(f"{card['data']}-best-pretrain")


@pytest.mark.slow
def test_the_glyphs_model_classifies_new_characters() -> None:
    result = evaluate(sosn.load("glyphs"), sosn.open_bank("glyphs", "test"), query=5, episodes=40)
    assert result.accuracy > 0.93


def test_every_shipped_model_has_its_card() -> None:
    shelf = Path(sosn.__file__).parent / "checkpoint" / "shipped"
    assert {path.stem for path in shelf.glob("*.safetensors")} == set(shipped_models())
