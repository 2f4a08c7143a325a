"""Frozen timm backbones with second-order prototypes, with weights from a local file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import sosn
from sosn import FewShotClassifier
from sosn.checkpoint.timm import open_timm
from sosn.errors import CheckpointError, UsageError
from sosn.method import NearestPrototype

timm = pytest.importorskip("timm")
BACKBONE = "test_resnet"  # the smallest that timm has


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in a file, classifier included, as a published one has them."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_file(timm.create_model(BACKBONE, pretrained=False).state_dict(), path)
    return path


def _photos(count: int) -> list[np.ndarray]:
    """Pictures that differ in colour and texture: two kinds in turn."""
    made = np.random.default_rng(0)
    kinds: list[Any] = [np.array([0.9, 0.3, 0.1]), np.array([0.1, 0.4, 0.9])]
    return [np.clip(kinds[place % 2] + 0.1 * made.standard_normal((40, 48, 3)), 0, 1) for place in range(count)]


def test_a_backbone_classifies_images_and_works_without_its_folder(checkpoint: Path, tmp_path: Path) -> None:
    photos = _photos(10)
    classifier = FewShotClassifier(encoder=f"timm:{BACKBONE}", checkpoint=checkpoint).fit(photos[:3], ["warm", "cold", "warm"])
    assert classifier.predict(photos[4:]).tolist() == ["warm", "cold"] * 3
    assert classifier.image_type_ == "photos"
    classifier.save(tmp_path)
    again = FewShotClassifier.load(tmp_path)
    np.testing.assert_array_equal(again.similarities(photos), classifier.similarities(photos))
    assert again.get_params()["encoder"] == f"timm:{BACKBONE}"


def test_scores_are_cosines_of_both_orders_of_the_backbone_s_maps(checkpoint: Path) -> None:
    method = open_timm(BACKBONE, checkpoint, input_size=64, reduce=0)
    episode = sosn.Episode(torch.rand(1, 2, 3, 3, 64, 64), torch.rand(1, 4, 3, 64, 64))
    backbone: Any = method.encoder.backbone
    mean, std = (torch.tensor(backbone.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))

    def described(image: torch.Tensor) -> torch.Tensor:
        maps = backbone.forward_features((image[None] - mean) / std)[0].flatten(1)
        m: torch.Tensor = maps @ maps.T / maps.shape[1]
        second = (2 / (1 + (-100 * m / (m.trace() + 1e-6)).exp()) - 1).flatten()
        first = maps.mean(1).sign() * maps.mean(1).abs() ** 0.75
        return torch.cat((first / first.norm(), second / second.norm()))

    with torch.no_grad():
        classes = torch.stack([torch.stack([described(image) for image in shots]).mean(0) for shots in episode.support[0]])
        queries = torch.stack([described(image) for image in episode.query[0]])
        expected = 20 * torch.nn.functional.cosine_similarity(queries[:, None], classes[None], dim=-1)
        torch.testing.assert_close(method.logits(episode)[0], expected, atol=1e-3, rtol=1e-4)


def test_transformers_give_their_patches_without_the_class_token() -> None:
    method = NearestPrototype(encoder={"name": "timm", "model": "test_vit"}, input_size=160)
    maps = method.encode(torch.rand(2, 3, 160, 160))
    assert maps.shape == (2, method.encoder.width, 100)


def test_a_state_dict_of_torch_s_is_read_and_one_with_code_in_it_is_not(checkpoint: Path, tmp_path: Path) -> None:
    weights = timm.create_model(BACKBONE, pretrained=False).state_dict()
    torch.save({"state_dict": weights}, tmp_path / "plain.pth")
    method = open_timm(BACKBONE, tmp_path / "plain.pth")
    loaded = method.encoder.state_dict()
    assert all(torch.equal(tensor, weights[name.removeprefix("backbone.")]) for name, tensor in loaded.items())
    torch.save({"state_dict": weights, "args": Path("x")}, tmp_path / "code.pth")
    for path in (tmp_path / "code.pth", Path(__file__)):
        with pytest.raises(CheckpointError, match="reading it would run code"):
            open_timm(BACKBONE, path)


def test_what_makes_no_sense_is_refused(checkpoint: Path) -> None:
    photo = _photos(1)
    for options, message in (
        ({"encoder": "resnet18"}, "write timm:NAME"),
        ({"encoder": "timm:resnett18"}, "timm has no model"),
        ({"encoder": f"timm:{BACKBONE}", "model": "glyphs"}, "give only one of them"),
        ({"checkpoint": checkpoint}, "name the network"),
    ):
        with pytest.raises(UsageError, match=message):
            FewShotClassifier(**options).fit(photo, ["a"])
    with pytest.raises(CheckpointError, match="does not hold the weights of 'resnet10t'"):
        FewShotClassifier(encoder="timm:resnet10t", checkpoint=checkpoint).fit(photo, ["a"])
    with pytest.raises(UsageError, match=r"there is no file 'nowhere\.pth'"):
        FewShotClassifier(encoder=f"timm:{BACKBONE}", checkpoint="nowhere.pth").fit(photo, ["a"])


def test_no_recipe_trains_it() -> None:
    with pytest.raises(UsageError, match="there is no method 'timm_prototype'"):
        sosn.override(sosn.load_recipe("glyphs-5w1s"), ["method=timm_prototype"])
