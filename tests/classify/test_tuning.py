"""Tuning is kept if it helps and discarded if not."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import sosn
from sosn.checkpoint.storage import load_tensors
from sosn.checkpoint.training_classes import training_classes
from sosn.classify.confidence import HELD_OUT
from sosn.classify.tuning import FOLDS, Tuned, _folds, _tuned, tune, tune_model
from sosn.data.bank import Bank
from sosn.errors import DataError, UntrainedError, UsageError
from sosn.evaluation.model import evaluate_model
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 9


@pytest.fixture(scope="module")
def bank() -> Bank:
    """Four characters, six drawings of each."""
    whole = sosn.open_bank("glyphs", "test", alphabets=10, characters=4, drawings=6, seed=5)
    return whole.subset(whole.names[:4])


def _strange(bank: Bank) -> Bank:
    """White on black, which the shipped model never saw."""
    return Bank(255 - bank.images, bank.labels, bank.names)


def test_every_picture_is_held_out_once_and_every_class_is_in_every_part(bank: Bank) -> None:
    folds = _folds(bank, 0)
    assert len(folds) == FOLDS
    assert sum(len(held_out) for _, held_out in folds) == len(bank)
    for known, held_out in folds:
        assert known.names == held_out.names == bank.names
        assert len(known) + len(held_out) == len(bank)
        seen = {image.numpy().tobytes() for image in known.images}
        assert not any(image.numpy().tobytes() in seen for image in held_out.images)


@pytest.mark.slow
def test_a_model_that_images_are_strange_to_is_tuned_and_kept(bank: Bank) -> None:
    model = sosn.load("glyphs")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    done: list[tuple[int, int]] = []
    result = tune(model, _strange(bank), STEPS, progress=lambda *both: done.append(both))
    assert result.pictures == 24
    assert result.after > result.before + result.spread
    assert result.method is not None
    assert result.method.trained
    assert result.calibration is not None
    assert result.calibration.split == HELD_OUT
    assert result.calibration.sizes[0].accuracy == result.after / result.pictures
    assert done[-1] == ((FOLDS + 1) * STEPS,) * 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())  # the given one stays
    statistics = [name for name in before if "running" in name]
    assert all(torch.equal(result.method.state_dict()[name], before[name]) for name in statistics)


@pytest.mark.slow
def test_a_model_that_is_right_already_is_left_as_it_is(bank: Bank) -> None:
    result = tune(sosn.load("glyphs"), bank, 1)
    assert result.before >= 0.9 * result.pictures
    assert result.method is None
    assert result.to_json()["kept"] is False


def test_the_same_seed_gives_the_same_weights(bank: Bank) -> None:
    two = [_tuned(sosn.load("glyphs"), bank, 2, 7, lambda done: None).state_dict() for _ in range(2)]
    assert all(torch.equal(tensor, two[1][name]) for name, tensor in two[0].items())


def test_too_few_classes_or_pictures_and_untrained_models_are_refused(bank: Bank) -> None:
    model = sosn.load("glyphs")
    with pytest.raises(DataError, match="needs 2 or more"):
        tune(model, bank.subset(bank.names[:1]))
    few = Bank.from_classes({name: bank.class_images(name)[: 5 if name == bank.names[2] else 6] for name in bank.names})
    with pytest.raises(DataError, match=f"class '{few.names[2]}' has 5 images"):
        tune(model, few)
    with pytest.raises(UsageError, match="steps is 0"):
        tune(model, bank, 0)
    with pytest.raises(UntrainedError):
        tune(sosn.SoSN(channels=1, input_size=28), bank)


@pytest.mark.slow
def test_the_command_writes_a_model_that_classify_takes(cli: Cli, bank: Bank, tmp_path: Path) -> None:
    for number, name in enumerate(bank.names):
        folder = tmp_path / "support" / f"letter{number}"
        folder.mkdir(parents=True)
        for place, image in enumerate(bank.class_images(name)):
            Image.fromarray(255 - image[0].numpy()).save(folder / f"{place}.png")
    as_is = ("--polarity", "as_is")
    code, out, err = cli("tune", "--support", "support", "--model", "glyphs", "--steps", str(STEPS), "--json", *as_is)
    assert code == 0, err
    printed = json.loads(out)
    assert printed["kept"]
    assert printed["folder"] == "tuned"
    assert "turned" not in err
    code, out, err = cli(
        "classify", "--support", "support", "--model", "tuned", "--json", "--reject", "0.1", "support/letter2", *as_is
    )
    assert code == 0, err
    assert [answer["answer"] for answer in json.loads(out)["answers"]].count("letter2") >= 5
    assert "Accuracy on held-out images of your classes" in err
    code, _, err = cli("tune", "--support", "support")
    assert code == 2
    assert "choose another --out" in err


@pytest.mark.slow
def test_classes_that_a_model_was_tuned_to_are_not_evaluated_as_new(
    bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = "test"  # a split of the folder that is evaluated
    for root, classes in ((tmp_path / "photos" / inside, bank.names[:3]), (tmp_path / "others", bank.names)):
        for number, name in enumerate(classes):
            (root / f"{root.name}{number}").mkdir(parents=True)
            for place, image in enumerate(bank.class_images(name)):
                Image.fromarray(image[0].numpy()).save(root / f"{root.name}{number}" / f"{place}.png")
    monkeypatch.setattr("sosn.classify.tuning.tune", lambda method, *rest: Tuned(6, 1, 5, 0.5, method))
    monkeypatch.chdir(tmp_path)
    tune_model(Path("photos") / inside, "glyphs", tmp_path / "tuned", 1, 0)
    words = "way=2 query=1 episodes=2 device=cpu size=28 channels=1 split=test".split()
    few = words
    tree = f"data=folder:{tmp_path / 'photos'}"
    with pytest.raises(DataError, match=r"test classes, such as '\w+', are training or tuning classes of 'tuned'"):
        evaluate_model("tuned", [tree, *few])
    evaluate_model("glyphs", [tree, *few])  # whose training classes are others
    evaluate_model("tuned", [f"data=folder:{tmp_path / 'others'}", *words, "val_share=0", "test_share=0.9"])
    written = load_tensors(tmp_path / "tuned" / "model.safetensors")[1]["seen"]
    tuned_to = f"{inside or 'photos'}0"
    assert [tuned_to in one["classes"] for one in written] == ([True, True, False] if inside else [True, False])
    assert written[-1]["name"] == "glyphs"  # what the model had been trained on before
    assert len(written[-1]["classes"]) == len(sosn.open_bank("glyphs", "train").names)
    assert any(tuned_to in one.classes for one in training_classes("tuned"))  # and so by what starts from it


@pytest.mark.slow
def test_drawings_with_the_wrong_background_are_inverted_before_tuning(cli: Cli, bank: Bank, tmp_path: Path) -> None:
    for number, name in enumerate(bank.names):
        for background, folder in (("light", tmp_path / "light"), ("dark", tmp_path / "dark")):
            (folder / f"letter{number}").mkdir(parents=True)
            for place, image in enumerate(bank.class_images(name)):
                drawing = image if background == "light" else 255 - image
                Image.fromarray(drawing[0].numpy()).save(folder / f"letter{number}" / f"{place}.png")
    printed = {}
    for background in ("light", "dark"):
        code, out, err = cli(
            "tune", "--support", background, "--model", "glyphs", "--steps", "1", "--out", background[0], "--json"
        )
        assert code == 0, err
        printed[background] = json.loads(out) | {"folder": None}
        assert ("inverted 24 of 24 images" in err) == (background == "dark")
    assert printed["light"] == printed["dark"]
