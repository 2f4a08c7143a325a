"""The example is the package's SoSN: same scores, same loss, same training step."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sosn

FILE = Path(__file__).parents[2] / "examples" / "sosn_in_100_lines.py"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sosn_in_100_lines", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def images(*shape: int) -> Tensor:
    """Random chequered images, float64 in 0…1: (…, 1, 28, 28)."""
    return torch.rand(*shape, 1, 7, 7, dtype=torch.float64).repeat_interleave(4, -1).repeat_interleave(4, -2)


def build(example: ModuleType) -> Any:
    """The example's model in float64, its linear layers enlarged so that scores differ from pair to pair."""
    model = example.SoSN().double()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.2)
    return model


def copy_to_package(model: nn.Module) -> sosn.SoSN:
    """The package's SoSN with the example's parameters and buffers, which come in the same order."""
    package = sosn.SoSN(channels=1, input_size=28).double()
    names = [name for name in package.state_dict() if name != "permutations"]
    weights = dict(zip(names, model.state_dict().values(), strict=True))
    package.load_state_dict(weights | {"permutations": package.permutations})
    return package


def state(model: nn.Module) -> list[Tensor]:
    return [value for name, value in model.state_dict().items() if name != "permutations"]


def test_the_example_has_at_most_100_lines() -> None:
    assert len(FILE.read_text("utf-8").splitlines()) <= 100


@pytest.mark.parametrize("training", [True, False], ids=["train mode", "eval mode"])
@pytest.mark.parametrize(("way", "shot"), [(3, 1), (2, 4)])
def test_the_package_gives_the_same_scores_and_loss(example: ModuleType, way: int, shot: int, training: bool) -> None:
    model = build(example)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    model(images(way, shot), images(6))  # running statistics are now those of such images
    package = copy_to_package(model)
    model.train(training)
    package.train(training)
    support, query, labels = images(way, shot), images(6), torch.randint(way, (6,))
    episode = sosn.Episode(support[None], query[None], labels[None])
    with torch.no_grad():
        scores = model(support, query)
        assert scores.std() > 1e-3
        torch.testing.assert_close(package(episode)[0], scores, rtol=0, atol=1e-6)
        torch.testing.assert_close(package.loss(episode, "mse"), example.objective(scores, labels), rtol=0, atol=1e-6)


def test_a_step_of_adam_gives_the_same_weights_and_running_statistics(example: ModuleType) -> None:
    model = build(example)
    package = copy_to_package(model)
    before = [value.clone() for value in state(model)]
    support, query, labels = images(3, 2), images(4), torch.tensor([0, 1, 2, 0])
    example.objective(model(support, query), labels).backward()
    package.loss(sosn.Episode(support[None], query[None], labels[None]), "mse").backward()
    for each in (model, package):
        torch.optim.Adam(each.parameters(), example.LEARNING_RATE).step()
    assert any((new - old).abs().max() > 1e-4 for new, old in zip(state(model), before, strict=True))
    for ours, theirs in zip(state(package), state(model), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_an_episode_shows_each_class_and_asks_for_others_of_its_images(example: ModuleType) -> None:
    numbers = torch.arange(6 * 5).view(6, 5, 1, 1, 1)  # image n is of class n // 5
    support, query, labels = example.draw_episode(numbers, way=4, shot=2, query=3)
    classes = support.flatten(1)[:, 0] // 5
    assert classes.unique().numel() == 4
    assert torch.equal(support.flatten(1) // 5, classes[:, None].expand(4, 2))
    assert torch.equal(query.flatten() // 5, classes[labels])
    assert torch.cat((support.flatten(), query.flatten())).unique().numel() == 4 * (2 + 3)


@pytest.mark.slow
def test_a_short_training_lowers_the_loss(example: ModuleType) -> None:
    drawings = images(example.WAY, 1).float().expand(-1, 3, -1, -1, -1)  # all drawings of a class are the same
    losses = example.train(example.SoSN().to(memory_format=torch.channels_last), drawings, steps=5)
    assert losses[-1] < losses[0]


def test_the_evaluation_is_in_evaluation_mode(example: ModuleType) -> None:
    model = example.SoSN()
    before = [value.clone() for value in state(model)]
    accuracy, interval = example.evaluate(model, images(example.WAY, 6).float(), episodes=2)
    assert 0 <= accuracy <= 1
    assert interval >= 0
    assert all(torch.equal(new, old) for new, old in zip(state(model), before, strict=True))
