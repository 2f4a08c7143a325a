"""The four-block encoder."""

import pytest
import torch
from torch import nn

import sosn
from sosn.encoder import Conv4, build_encoder
from sosn.errors import UsageError
from sosn.method import BaselinePlusPlus, SoSN
from tests import reference

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("channels", "parameters"), [(3, 113_088), (1, 111_936)])
def test_the_published_encoder_has_113_088_parameters_in_colour(channels: int, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in Conv4(channels).parameters()) == parameters


@pytest.mark.parametrize(("image", "side"), [(28, 5), (84, 19), (224, 54), (10, 1)])
def test_image_sizes_give_the_published_map_sizes(image: int, side: int) -> None:
    assert Conv4().map_side(image) == side
    assert Conv4().eval()(torch.rand(1, 3, image, image)).shape == (1, 64, side, side)


@pytest.mark.parametrize(("pools", "least"), [(2, 10), (3, 14), (4, 22)])
def test_map_side_is_the_side_of_the_map(pools: int, least: int) -> None:
    encoder = Conv4(channels=1, width=2, pools=pools).eval()
    assert encoder.map_side(least - 1) < 1
    for image in range(least, 60):
        assert encoder(torch.rand(1, 1, image, image)).shape[-1] == encoder.map_side(image) > 0


def test_later_blocks_can_pool_too_and_no_more_than_there_are() -> None:
    assert [Conv4(pools=pools).map_side(84) for pools in (2, 3, 4)] == [19, 9, 4]
    for pools in (1, 5):
        with pytest.raises(UsageError, match=f"pools is {pools}; it must be 2, 3 or 4"):
            Conv4(pools=pools)
    with pytest.raises(UsageError, match="conv4 needs images of 22 pixels"):
        build_encoder({"name": "conv4", "pools": 4}, 3, 21)


def test_further_blocks_leave_the_map_its_size() -> None:
    plain, deeper = Conv4(channels=1), Conv4(channels=1, blocks=6)
    added = sum(parameter.numel() for parameter in deeper.parameters()) - sum(one.numel() for one in plain.parameters())
    assert added == 2 * (64 * 64 * 9 + 3 * 64)
    for pools in (2, 3, 4):
        encoder = build_encoder({"name": "conv4", "pools": pools, "blocks": 6}, 1, 42).eval()
        assert encoder(torch.rand(2, 1, 42, 42)).shape == (2, 64, encoder.map_side(42), encoder.map_side(42))
    with pytest.raises(UsageError, match="blocks is 3; it must be 4 or more"):
        Conv4(blocks=3)


def test_the_last_of_further_blocks_is_the_one_without_relu() -> None:
    images = torch.rand(4, 1, 28, 28)
    assert Conv4(1, features="linear", blocks=5)(images).min() < -0.5
    assert sum(isinstance(layer, nn.ReLU) for layer in Conv4(1, features="linear", blocks=5).blocks) == 4


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("conv4", "first_width", 4),
        ("conv4_pooled", "pools", 3),
        ("resnet12", "blocks", 6),
        ("conv4", "drop", 0.1),
    ],
)
def test_options_of_another_encoder_are_refused(name: str, option: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"encoder '{name}' has no key '{option}'"):
        build_encoder({"name": name, option: value}, 3, 84)


def test_methods_hand_the_blocks_on_to_their_encoder() -> None:
    for method in (SoSN(encoder={"blocks": 5}), BaselinePlusPlus(encoder={"name": "conv4", "blocks": 5})):
        assert sum(isinstance(layer, nn.Conv2d) for layer in method.encoder.modules()) == 5


def test_methods_hand_the_pools_on_to_their_encoder() -> None:
    spec = {"name": "conv4", "pools": 3}
    for method in (SoSN(encoder=spec), BaselinePlusPlus(encoder=spec), sosn.load("mini-imagenet")):
        assert isinstance(method, SoSN | BaselinePlusPlus)
        assert method.encoder(torch.rand(1, 3, 84, 84)).shape == (1, 64, 9, 9)


def test_an_image_of_9_pixels_has_no_map() -> None:
    assert Conv4().map_side(9) < 1


def test_the_width_is_the_number_of_features() -> None:
    assert Conv4(channels=1, width=32)(torch.rand(2, 1, 28, 28)).shape == (2, 32, 5, 5)


@pytest.mark.parametrize("linear", [False, True], ids=["relu", "linear"])
@pytest.mark.parametrize("running", [False, True], ids=["batch statistics", "running statistics"])
def test_the_encoder_follows_its_layers(running: bool, linear: bool) -> None:
    encoder = Conv4(channels=3, width=8, features="linear" if linear else "relu").double()
    images = torch.rand(4, 3, 28, 28, dtype=torch.float64)
    encoder(images)  # so that running statistics are not those of a new net
    encoder.train(not running)
    expected = reference.encode(encoder, images, running, linear).reshape(4, 8, 5, 5)
    torch.testing.assert_close(encoder(images), expected, rtol=1e-9, atol=1e-11)


def test_features_are_negative_only_without_the_last_relu() -> None:
    images = torch.rand(4, 1, 28, 28)
    assert Conv4(1, features="relu")(images).min() == 0
    assert Conv4(1, features="linear")(images).min() < -0.5


def test_relu_and_linear_features_have_the_same_parameters() -> None:
    assert Conv4(1, features="linear").state_dict().keys() == Conv4(1, features="relu").state_dict().keys()


def test_running_statistics_move_by_a_tenth() -> None:
    encoder = Conv4(channels=1, width=4)
    first = next(layer for layer in encoder.modules() if isinstance(layer, nn.BatchNorm2d))
    conv = next(layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d))
    images = torch.rand(3, 1, 28, 28)
    encoder(images)
    assert first.running_mean is not None
    torch.testing.assert_close(first.running_mean, 0.1 * conv(images).mean((0, 2, 3)))
