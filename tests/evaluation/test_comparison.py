"""Several models on the same episodes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from sosn.checkpoint.storage import save_method
from sosn.data.dataset import open_bank
from sosn.errors import UntrainedError, UsageError
from sosn.evaluation.comparison import compare_models, mflops_of_an_episode
from sosn.evaluation.model import EvaluationSettings, evaluate_model
from sosn.method import METHODS, Method, NearestPixels, method_class
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("alphabets=10", "characters=6", "drawings=8")
WORDS = (*(f"data.{word}" for word in SMALL), "query=2", "episodes=6", "device=cpu")


def save(folder: Path, name: str, trained: bool = True, **settings: Any) -> str:
    """A model with weights as they start, said to be trained."""
    torch.manual_seed(0)
    method = method_class(name)(channels=1, input_size=28, **settings)
    method.trained = trained
    recipe = override(load_recipe("glyphs-5w1s"), SMALL)
    save_method(folder / f"{name}.safetensors", method, {"recipe": recipe.to_table()})
    return str(folder / f"{name}.safetensors")


@pytest.mark.slow
def test_rows_are_the_paired_comparison_with_the_first(tmp_path: Path) -> None:
    models = [save(tmp_path, name) for name in ("prototypical", "relation_net", "maml")]
    rows, settings = compare_models(models, WORDS)
    assert settings.split == "val"
    assert len({row.evaluation.fingerprint for row in rows}) == 1
    assert rows[0].against_first is None
    for row in rows[1:]:
        assert row.against_first is not None
        first, this = (torch.tensor(one.evaluation.per_episode, dtype=torch.float64) for one in (rows[0], row))
        assert row.against_first.difference == pytest.approx((this - first).mean().item())
        assert row.against_first.p_value == pytest.approx(stats.ttest_rel(this, first).pvalue)
    assert [row.method for row in rows] == ["prototypical", "relation_net", "maml"]
    assert [row.adapts for row in rows] == [False, False, True]
    assert not any(row.transductive for row in rows)
    assert [row.parameters for row in rows] == [111_936, 223_441, 112_261]
    assert all(row.episodes_per_second > 0 for row in rows)
    again, _ = compare_models(models[:2], (*WORDS, "statistics=batch"))
    assert all(row.transductive for row in again)


def test_operations_are_those_of_the_convolutions_and_products(tmp_path: Path) -> None:
    bank = open_bank("glyphs", "val", alphabets=10, characters=6, drawings=8)
    settings = EvaluationSettings(way=5, shot=1, query=2, episodes=2, seed=0)
    method = method_class("prototypical")(channels=1, input_size=28)
    images = 5 + 10
    sides, inputs = (28, 14, 7, 3), (1, 64, 64, 64)
    encoder = sum(2 * 9 * c * 64 * side * side for side, c in zip(sides, inputs, strict=True)) * images
    assert mflops_of_an_episode(method, bank, settings) == pytest.approx((encoder + 2 * 10 * 5 * 64) / 1e6)


@pytest.mark.parametrize("name", METHODS)
def test_operations_of_every_method_can_be_counted(name: str) -> None:
    bank = open_bank("glyphs", "val", alphabets=10, characters=6, drawings=8)
    settings = EvaluationSettings(way=5, shot=1, query=1, episodes=2, seed=0)
    plain = mflops_of_an_episode(method_class("prototypical")(channels=1, input_size=28), bank, settings)
    counted = mflops_of_an_episode(_small(name), bank, settings)
    assert counted > (0 if name == "pixels" else 0.5 * plain)
    if name == "maml":  # ten steps forth and back on 5 of 10 images, and once more forth
        assert counted > 10 * plain


def _small(name: str) -> Method:
    return method_class(name)(channels=1, input_size=28)


def test_models_that_were_not_trained_and_fewer_than_two_are_refused(cli: Cli, tmp_path: Path) -> None:
    with pytest.raises(UntrainedError, match="'prototypical' has not been trained"):
        compare_models(["glyphs", save(tmp_path, "prototypical", trained=False)], WORDS)
    with pytest.raises(UsageError, match="no model was given: compare takes"):
        compare_models([], WORDS)
    code, out, err = cli("compare", "glyphs", *WORDS)
    assert (code, out) == (2, "")
    assert "only 'glyphs' was given: compare takes two or more model names or run folders; `sosn eval` takes one" in err


def test_the_command_prints_a_table_or_one_document(cli: Cli, tmp_path: Path) -> None:
    models = [save(tmp_path, name) for name in ("prototypical", "covamnet")]
    pixels = str(tmp_path / "pixels.safetensors")
    save_method(Path(pixels), NearestPixels(), {})
    code, out, err = cli("compare", *models, pixels, *WORDS, "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert (printed["split"], printed["precision"], printed["engine"]) == ("val", "fp32", "auto")
    assert [row["method"] for row in printed["rows"]] == ["prototypical", "covamnet", "pixels"]
    assert "p_value" not in printed["rows"][0]
    assert 0 <= printed["rows"][1]["p_value"] <= 1
    assert {"accuracy", "ci95", "parameters", "mflops", "episodes_per_second", "transductive", "adapts"} <= set(
        printed["rows"][0]
    )
    code, out, err = cli("compare", *models, *WORDS)
    assert code == 0, err
    assert "minus the first" in out
    assert "±" in out


def test_an_untrained_model_is_not_evaluated(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("eval", save(tmp_path, "prototypical", trained=False), *WORDS)
    assert code == 1
    assert "has not been trained and would predict at chance: train it with `sosn train`" in err
    assert cli("compare", "glyphs", "nowhere")[0] == 2


def test_a_model_whose_encoder_has_seen_imagenet_is_not_tested_on_it() -> None:
    for words, message in ((["data=mini-imagenet"], "contains the classes of mini-imagenet"), ([], "give data=folder:PATH")):
        with pytest.raises(UsageError, match=message):
            compare_models(["photos", "mini-imagenet"], words)
        with pytest.raises(UsageError, match=message):
            evaluate_model("photos", words)
