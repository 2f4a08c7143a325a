"""What every method promises: encode → describe → compare, and what it declares of itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sosn.checkpoint.storage import load_method, save_method
from sosn.encoder import Conv4Pooled, Encoder
from sosn.episode import Episode
from sosn.method import METHODS, Method
from sosn.method.base import SHARED, in_order
from tests.method.test_rivals import episode, make, moved

pytestmark = pytest.mark.usefixtures("one_thread")


def ready(name: str, **settings: Any) -> Method:
    """A small method in float64 and evaluation mode, with running statistics unlike those of a new one."""
    if name == "pixels":
        return METHODS[name](channels=1, input_size=28, **settings).eval()
    if name == "sosn":
        settings = {"encoder": {"width": 46}} | settings
    return moved(make(name, **settings))


def features(method: Method, images: Tensor) -> Tensor:
    """Features of images (…, C, H, W), each encoded by itself: (…, …)."""
    alone = [method.encode(image[None]) for image in images.flatten(0, -4)]
    shaped: Tensor = torch.cat(alone).unflatten(0, images.shape[:-3])
    return shaped


BY_IMAGE = [name for name in METHODS if name not in ("maml", "meta_lstm")]
FIXED = ["sosn", "pixels", "relation_net", "prototypical", "nearest_prototype", "two_orders"]
APART = ["sosn", "pixels", "prototypical", "siamese", "nearest_prototype", "covamnet", "two_orders"]


@pytest.mark.parametrize("name", METHODS)
def test_methods_declare_what_they_can_do(name: str) -> None:
    method = ready(name)
    assert method.describes_images == (name in BY_IMAGE)
    assert method.fixed_size == (name in FIXED)
    assert method.classes_apart == (name in APART)
    assert method.exportable == (name == "sosn")
    assert (method.second_order is not None) == (name in ("sosn", "nearest_prototype"))
    assert method.adapts == (name in ("maml", "meta_lstm", "baseline", "baseline++"))
    assert not method.transductive


@pytest.mark.parametrize("shot", [1, 3])
@pytest.mark.parametrize("name", BY_IMAGE)
def test_logits_compare_descriptions_of_images_encoded_one_by_one(name: str, shot: int) -> None:
    method, tasks = ready(name), episode(shot)
    with torch.no_grad():
        classes = method.describe(features(method, tasks.support))
        queries = method.describe(features(method, tasks.query).unsqueeze(2))
        expected = method.compare(classes, queries)
        found = method.logits(tasks)
    assert found.shape == (2, 4, 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if name == "pixels" else 1e-9)
    assert found.std() > 1e-6  # answers differ: the test is not empty
    torch.testing.assert_close(method(tasks), method.score(found))


@pytest.mark.parametrize("name", BY_IMAGE)
def test_class_descriptors_have_a_fixed_size_if_a_method_declares_it(name: str) -> None:
    method = ready(name)
    with torch.no_grad():
        one, three = (method.describe(features(method, episode(shot).support)).shape for shot in (1, 3))
    assert one[:2] == three[:2] == (2, 3)
    assert (one == three) == method.fixed_size


@pytest.mark.parametrize("relation", ["full", "hadamard", "subtract"])
def test_relations_that_join_class_and_query_have_no_description_of_a_class(relation: str) -> None:
    method = ready("sosn", relation=relation, encoder={"width": 46})
    assert not method.fixed_size
    assert not method.exportable
    assert method.second_order is None


@pytest.mark.parametrize("name", APART)
def test_the_logit_of_a_class_does_not_depend_on_other_classes(name: str) -> None:
    method, tasks = ready(name), episode(2)
    with torch.no_grad():
        together = method.logits(tasks)
        for place in range(3):
            alone = method.logits(Episode(tasks.support[:, place : place + 1], tasks.query))
            torch.testing.assert_close(together[..., place : place + 1], alone, rtol=0, atol=1e-6 if name == "pixels" else 1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_the_config_builds_the_method_again(name: str) -> None:
    method, tasks = ready(name), episode()
    again = METHODS[name](**method.config).to(method.dtype).eval()
    shapes = [{key: tuple(value.shape) for key, value in one.state_dict().items()} for one in (method, again)]
    assert shapes[0] == shapes[1]
    assert again.config == method.config
    again.load_state_dict(method.state_dict())
    with torch.no_grad():
        assert torch.equal(again(tasks), method(tasks))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_comes_back_from_its_file_with_the_same_scores(name: str, tmp_path: Path) -> None:
    images = {"std": [0.5], "polarity": "inverted"}
    method, tasks = ready(name, preprocessing=images, test_time={"mirror": True}).float(), episode()
    save_method(tmp_path / "method.safetensors", method)
    again, about = load_method(tmp_path / "method.safetensors")
    assert type(again) is type(method)
    assert about["config"] == again.config == method.config
    assert (again.preprocessing.polarity, again.test_time.mirror) == ("inverted", True)
    with torch.no_grad():
        assert torch.equal(again(tasks), method(tasks))


@pytest.mark.parametrize("name", METHODS)
def test_the_config_holds_plain_values_and_every_option_once(name: str) -> None:
    config = ready(name).config
    tables = {"preprocessing", "test_time", "encoder"} & config.keys()
    assert {"preprocessing", "test_time"} <= tables
    assert not (config.keys() & set(SHARED)) - tables
    for value in [*config.values(), *(inner for table in tables for inner in config[table].values())]:
        assert isinstance(value, bool | int | float | str | list | dict | None)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "pixels"])
def test_the_encoder_may_be_one_that_is_there_already(name: str) -> None:
    """A chain of blocks, which MAML and the Meta-Learner LSTM need too; its weights stay as they are."""
    encoder: Encoder = Conv4Pooled(channels=1, width=46 if name == "sosn" else 6)
    if name in ("relation_net", "covamnet"):
        encoder = ready("sosn").get_submodule("encoder").float()  # type: ignore[assignment]
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    options: dict[str, Any] = {"outputs": 3} if name in ("maml", "meta_lstm") else {}
    method = METHODS[name](**options | {"channels": 1, "input_size": 28, "encoder": encoder}).eval()
    assert method.get_submodule("encoder") is encoder
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    with torch.no_grad():
        assert method(episode()).shape == (2, 4, 3)


def test_scores_that_round_to_one_keep_the_order_of_their_logits() -> None:
    logits = torch.tensor([[18.0, 40.0, 19.0, 40.0, 2.0, -200.0]])
    assert torch.sigmoid(logits)[0, :4].eq(1).all()
    scores = in_order(torch.sigmoid(logits), logits)
    assert scores[0].unique().tolist() == sorted(scores[0, [5, 4, 0, 2, 1]].tolist())  # equal logits have equal scores
    assert scores[0, 1] == scores[0, 3] == 1
    torch.testing.assert_close(scores, torch.sigmoid(logits), rtol=0, atol=3e-7)
