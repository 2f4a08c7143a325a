"""A warm start takes the weights that fit, reports them, and keeps the training classes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import sosn
from sosn.checkpoint.storage import load_tensors, save_method
from sosn.checkpoint.training_classes import same_classes, training_classes
from sosn.errors import CheckpointError, DataError, UsageError
from sosn.evaluation.model import evaluate_model
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe, from_table
from sosn.recipe.sections import DataSection
from sosn.training import train
from sosn.training.progress import Silent
from sosn.training.run import Run
from sosn.training.setup import build, open_split
from sosn.training.trainer import Trainer
from tests.conftest import Listener
from tests.training.test_loop import folder_recipe, photos, same, tiny, weights


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A Relation Net that was trained for two steps: its encoder is SoSN's, its head is not."""
    train(tiny("steps=2", "every=2", "method=relation_net", "average=0"), tmp_path / "before")
    return tmp_path / "before"


def started(words: list[str], tmp_path: Path) -> Trainer:
    trainer = Trainer(tiny(*words), Run(tmp_path / "new"), Silent())
    trainer.begin()
    return trainer


# --- what is taken ----------------------------------------------------------------------------------------------------


def test_what_has_the_same_name_and_shape_is_taken_and_the_rest_begins_as_without(before: Path, tmp_path: Path) -> None:
    trainer = started([f"start={before}"], tmp_path)
    given, own = weights(before), trainer.method.state_dict()
    fresh = build(trainer.recipe, open_split(trainer.recipe, "train")).state_dict()
    encoder = [name for name in own if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(own[name], given[name]) for name in encoder)  # running statistics too
    assert all(torch.equal(own[name], fresh[name]) for name in own if name not in encoder)
    assert not torch.equal(fresh["encoder.blocks.0.weight"], given["encoder.blocks.0.weight"])


def test_the_moving_average_starts_at_the_taken_weights(before: Path, tmp_path: Path) -> None:
    trainer = started([f"start={before}", "average=0.99"], tmp_path)
    assert all(torch.equal(trainer.average[name], weight) for name, weight in trainer.method.named_parameters())
    assert torch.equal(trainer.average["encoder.blocks.0.weight"], weights(before)["encoder.blocks.0.weight"])


@pytest.mark.slow
def test_a_shipped_model_is_fine_tuned_from_its_own_weights(tmp_path: Path) -> None:
    shipped = sosn.load("glyphs").state_dict()
    own = started(["start=glyphs", "data.seed=5"], tmp_path).method.state_dict()
    assert all(torch.equal(own[name], shipped[name]) for name in shipped if not name.startswith("preprocessing."))


def test_a_mean_image_stays_that_of_the_new_images(tmp_path: Path) -> None:
    model = sosn.SoSN(channels=1, input_size=28, preprocessing={"mean_image": True})
    model.preprocessing.take_mean(torch.rand(1, 28, 28))
    save_method(tmp_path / "other.safetensors", model)
    own = started([f"start={tmp_path / 'other.safetensors'}", "mean_image=true"], tmp_path).method.preprocessing.mean_image
    assert not torch.equal(own, model.preprocessing.mean_image)


@pytest.mark.slow
def test_taken_and_new_tensors_are_reported_and_recorded(before: Path, tmp_path: Path) -> None:
    listener = Listener()
    train(tiny("steps=2", "every=2", f"start={before}"), tmp_path / "run", progress=listener)
    (said,) = [sentence for sentence in listener.said if "tensors taken from" in sentence]
    own, given = weights(tmp_path / "run"), weights(before)
    encoder = {name for name in own if name.startswith("encoder.")}
    assert f"{len(encoder)} of {len(own)} tensors taken from {str(before)!r}" in said
    assert "newly initialised: permutations, similarity." in said
    assert "not used: relation." in said
    record = json.loads((tmp_path / "run" / "run.json").read_text())["start"]
    assert set(record["taken"]) == encoder
    assert set(record["own"]) == own.keys() - encoder
    assert set(record["unused"]) == given.keys() - encoder
    assert record["model"] == str(before)
    assert len(record["weights"]) == 32


def test_a_run_without_a_start_writes_nothing_of_one(before: Path) -> None:
    assert "start" not in json.loads((before / "run.json").read_text())
    assert "seen" not in load_tensors(before / "model.safetensors")[1]


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ("method=prototypical encoder_width=7", UsageError, "fits this 'prototypical' model by name and shape"),
        ("start={before}/none", UsageError, "there is no model"),
        ("start={before}/checkpoint.safetensors", CheckpointError, "is a checkpoint for resuming a run"),
    ],
)
def test_a_start_that_gives_nothing_is_refused(
    before: Path, tmp_path: Path, words: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        train(tiny(f"start={before}", *words.format(before=before).split()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- in a recipe ------------------------------------------------------------------------------------------------------


def test_a_path_becomes_absolute_and_a_shipped_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = override(Recipe(), ["start=runs/one"])
    assert recipe.training.start == str(tmp_path / "runs" / "one")
    assert override(recipe, ["start=glyphs"]).training.start == "glyphs"
    assert from_table(recipe.to_table(), "the table") == recipe
    assert Recipe().training.start == ""


# --- resuming ---------------------------------------------------------------------------------------------------------


def interrupted(recipe: Recipe, folder: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, and stop before this step."""
    advance = Trainer.advance

    def stop(trainer: Trainer) -> torch.Tensor:
        if trainer.step == step:
            raise KeyboardInterrupt
        return advance(trainer)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "advance", stop)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder)


@pytest.mark.slow
def test_a_resumed_run_does_not_start_again_and_needs_its_start_no_longer(
    before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("steps=4", "every=2", "average=0.9", f"start={before}")
    train(recipe, tmp_path / "whole")
    interrupted(recipe, tmp_path / "run", 2, monkeypatch)
    shutil.rmtree(before)
    train(recipe, tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))
    first, second = (load_tensors(tmp_path / name / "model.safetensors")[1] for name in ("whole", "run"))
    assert first["seen"] == second["seen"]


@pytest.mark.slow
def test_a_run_that_had_saved_nothing_starts_again_from_the_same_weights_alone(
    before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("steps=2", "every=2", f"start={before}")
    train(recipe, tmp_path / "whole")
    interrupted(recipe, tmp_path / "run", 0, monkeypatch)
    shutil.copytree(before, tmp_path / "kept")
    shutil.rmtree(before)
    train(tiny("steps=3", "every=3", "method=relation_net"), before)
    with pytest.raises(CheckpointError, match="have changed: restore them"):
        train(recipe, tmp_path / "run", resume=True)
    shutil.rmtree(before)
    shutil.copytree(tmp_path / "kept", before)
    train(recipe, tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))


# --- classes that were seen -------------------------------------------------------------------------------------------


@pytest.fixture
def two_stages(tmp_path: Path) -> tuple[Path, Path]:
    """A run on photos, and one on glyphs that was started from it."""
    recipe = folder_recipe(photos(tmp_path / "photos", 20))
    train(recipe, tmp_path / "photos-run")
    train(tiny("steps=2", "every=2", "preprocessing.channels=3", f"start={tmp_path / 'photos-run'}"), tmp_path / "glyphs-run")
    return tmp_path / "photos-run", tmp_path / "glyphs-run"


def on_photos(model: Path, tmp_path: Path, *words: str) -> None:
    shares = ("data.size=28", "data.val_share=0.3", "data.test_share=0.3", "way=2", "query=1", "episodes=2", "device=cpu")
    evaluate_model(str(model), [f"data=folder:{tmp_path / 'photos'}", *shares, *words])


@pytest.mark.slow
def test_classes_that_the_start_was_trained_on_are_not_evaluated_as_new(two_stages: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = two_stages
    on_photos(second, tmp_path, "split=test")  # split as they were
    with pytest.raises(DataError, match="training or tuning classes of"):
        on_photos(second, tmp_path, "split=test", "data.split_seed=1")
    shutil.copy(second / "model.safetensors", tmp_path / "alone.safetensors")
    shutil.rmtree(first)
    with pytest.raises(DataError, match="training or tuning classes of"):  # the file itself knows
        on_photos(tmp_path / "alone.safetensors", tmp_path, "split=test", "data.split_seed=1")


def test_a_folder_is_the_same_however_its_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "train").mkdir(parents=True)
    (tmp_path / "link").symlink_to("photos")
    names = ["photos", "photos/", "photos/train/..", "./photos", "link", str(tmp_path / "photos")]
    places = [DataSection(f"folder:{name}", options={}) for name in names]
    assert all(same_classes(places[0], other) for other in places)
    assert not same_classes(places[0], DataSection("folder:photos/train", options={}))


@pytest.mark.slow
def test_training_classes_are_passed_on_from_start_to_start(two_stages: tuple[Path, Path], tmp_path: Path) -> None:
    third = tmp_path / "third"
    train(tiny("steps=2", "every=2", "preprocessing.channels=3", "data.seed=8", f"start={two_stages[1]}"), third)
    trained = [json.loads((run / "run.json").read_text())["data"]["train"]["classes"] for run in (third, *two_stages)]
    seen = training_classes(str(third))
    assert [one.data.name.partition(":")[0] for one in seen] == ["glyphs", "glyphs", "folder"]
    assert [set(one.classes) for one in seen] == [set(trained[0]), set(trained[2]), set(trained[1])]


@pytest.mark.slow
def test_validation_on_classes_that_the_start_was_trained_on_is_refused(two_stages: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = two_stages
    recipe = override(load_recipe(str(first)), ["split_seed=1", f"start={first}"])
    with pytest.raises(DataError, match=r"validation classes, such as 'kind\d\d', are training classes of start"):
        train(recipe, tmp_path / "third")
    train(override(load_recipe(str(first)), [f"start={first}"]), tmp_path / "third")


@pytest.mark.slow
def test_glyphs_of_another_seed_are_other_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="training classes of start 'glyphs'"):
        train(tiny("start=glyphs"), tmp_path / "run")
    train(tiny("steps=2", "every=2", "start=glyphs", "data.seed=5"), tmp_path / "run")
    few = ("split=test", "way=2", "query=2", "episodes=2", "device=cpu")
    evaluate_model(str(tmp_path / "run"), few)
    with pytest.raises(DataError, match="training or tuning classes of"):
        evaluate_model(str(tmp_path / "run"), ["data.seed=0", "data.alphabets=20", *few])


@pytest.mark.slow
def test_a_start_without_a_recipe_has_no_known_training_classes(tmp_path: Path) -> None:
    save_method(tmp_path / "own.safetensors", sosn.SoSN(channels=1, input_size=28))
    train(tiny("steps=2", "every=2", f"start={tmp_path / 'own.safetensors'}"), tmp_path / "run")
    assert load_tensors(tmp_path / "run" / "model.safetensors")[1]["seen"] == []
    assert load_file(tmp_path / "run" / "model.safetensors")


def test_standard_scores_of_a_classifier_go_on_in_the_cosine_of_sosn(tmp_path: Path) -> None:
    words = "method=baseline++ encoder=conv4 model.features=second_order head=nearest standard_scores=true".split()
    train(tiny("steps=2", "every=2", "average=0", "loss=cross_entropy", *words), tmp_path / "first")
    method = started([f"start={tmp_path / 'first'}", "cosine=1"], tmp_path).method.eval()
    assert isinstance(method, sosn.SoSN)
    first = sosn.load(tmp_path / "first").eval()
    episode = sosn.EpisodeSampler(sosn.open_bank("glyphs", "val", alphabets=10, characters=6, drawings=8), 5, 1, 2).draw(
        2, sosn.generator("start")
    )
    with torch.no_grad():
        support, query = method._episode_features(episode)
        cosines = method._cosines(method.describe(support), method.describe(query.unsqueeze(2)))
        expected = first.logits(episode) / 10  # the nearest class by ten times the cosine
    torch.testing.assert_close(cosines, expected, rtol=1e-4, atol=1e-5)
