"""ResNet-12 as an encoder: its layers against a plain reference, DropBlock, and the methods that use it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import sosn
from sosn.checkpoint.storage import load_method, save_method
from sosn.classify.onnx import export_onnx
from sosn.cli.process import check_bf16
from sosn.encoder import ResNet12, build_encoder
from sosn.encoder.drop_block import DropBlock
from sosn.errors import UsageError
from sosn.kernel import engine
from sosn.method import METHODS, Method, NearestPrototype, method_class
from sosn.method.base import batch_norms
from tests.method.test_rivals import episode, moved

pytestmark = pytest.mark.usefixtures("one_thread")

TINY: dict[str, Any] = {"channels": 1, "input_size": 28, "encoder": {"name": "resnet12", "first_width": 2}}


def reference(encoder: ResNet12, images: Tensor, running: bool) -> Tensor:
    """The encoder written out from its parameters: conv, norm, leaky ReLU; the sum with the shortcut; pooling; reduction."""
    weights: dict[str, Tensor] = dict(encoder.state_dict(keep_vars=True))

    def convolved(x: Tensor, conv: str, norm: str) -> Tensor:
        weight: Tensor = weights[f"{conv}.weight"]
        y = F.conv2d(x, weight, padding=weight.shape[-1] // 2)
        mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)
        if running:
            mean, var = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
        y = (y - mean[:, None, None]) / torch.sqrt(var[:, None, None] + 1e-5)
        return y * weights[f"{norm}.weight"][:, None, None] + weights[f"{norm}.bias"][:, None, None]

    def leaky(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0.1 * x)

    x = images
    for stage in range(4):
        start = f"stages.{stage}."
        y = leaky(convolved(x, f"{start}layers.0", f"{start}layers.1"))
        y = leaky(convolved(y, f"{start}layers.3", f"{start}layers.4"))
        y = convolved(y, f"{start}layers.6", f"{start}layers.7")
        x = leaky(y + convolved(x, f"{start}shortcut.0", f"{start}shortcut.1"))
        if stage < encoder.pools:
            side = x.shape[-1] // 2
            x = x[..., : 2 * side, : 2 * side].unflatten(-1, (side, 2)).unflatten(-3, (side, 2)).amax((-1, -3))
    return convolved(x, "reduce.0", "reduce.1").clamp(min=0) if "reduce.0.weight" in weights else x


# --- the encoder ------------------------------------------------------------------------------------------------------


def test_without_the_reduction_it_has_the_published_12_424_320_parameters() -> None:
    stages = ResNet12(width=0)
    assert sum(parameter.numel() for parameter in stages.parameters()) == 12_424_320
    assert stages.width == 640
    assert sum(parameter.numel() for parameter in ResNet12().parameters()) == 12_424_320 + 640 * 64 + 2 * 64


@pytest.mark.parametrize(("pools", "side"), [(4, 5), (3, 10), (2, 21)])
def test_an_image_of_84_pixels_has_25_100_or_441_positions(pools: int, side: int) -> None:
    encoder = ResNet12(first_width=2, pools=pools).eval()
    assert encoder.map_side(84) == side
    assert encoder(torch.rand(1, 3, 84, 84)).shape == (1, 64, side, side)


@pytest.mark.parametrize("running", [False, True], ids=["batch statistics", "running statistics"])
@pytest.mark.parametrize(("width", "pools"), [(5, 3), (0, 4), (3, 2)])
def test_the_encoder_follows_its_layers(width: int, pools: int, running: bool) -> None:
    encoder = ResNet12(channels=3, width=width, first_width=2, pools=pools).double()
    images = torch.rand(4, 3, 29, 29, dtype=torch.float64)
    encoder(images)  # so that running statistics are not those of a new net
    encoder.train(not running)
    expected = reference(encoder, images, running)
    assert expected.std() > 1e-3
    torch.testing.assert_close(encoder(images), expected, rtol=1e-9, atol=1e-11)


def test_linear_features_may_be_negative_and_have_the_same_parameters() -> None:
    images = torch.rand(4, 1, 28, 28)
    relu, linear = (ResNet12(1, 8, features, first_width=2) for features in ("relu", "linear"))
    assert relu(images).min() == 0
    assert linear(images).min() < -0.5
    assert relu.state_dict().keys() == linear.state_dict().keys()


@pytest.mark.parametrize(("pools", "least"), [(2, 4), (3, 8), (4, 16)])
def test_images_too_small_are_refused_with_the_least_size(pools: int, least: int) -> None:
    spec = {"name": "resnet12", "width": 8, "first_width": 2, "pools": pools}
    encoder = build_encoder(spec, 1, least)
    assert encoder.eval()(torch.rand(1, 1, least, least)).shape[-1] == 1
    with pytest.raises(UsageError, match=f"input_size is {least - 1}; resnet12 needs images of {least} pixels"):
        build_encoder(spec, 1, least - 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pools": 1}, "pools is 1; it must be 2, 3 or 4"),
        ({"first_width": 0}, "first_width is 0; it must be 1 or more"),
        ({"drop": 1.0}, "drop is 1.0"),
        ({"width": -1}, "width is -1; it must be 0 or more"),
        ({"width": 0, "features": "linear"}, "features is 'linear' and width is 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_encoder({"name": "resnet12", "width": 8} | options, 1, 28)


# --- DropBlock --------------------------------------------------------------------------------------------------------


def test_drop_block_leaves_out_whole_squares_and_about_the_share() -> None:
    drop, maps = DropBlock(0.1, side=3), torch.ones(64, 16, 10, 10)
    kept = drop(maps) > 0
    gone = ~kept
    assert gone.float().mean().item() == pytest.approx(0.1, abs=0.02)
    squares = F.max_pool2d(F.pad(-F.max_pool2d(-gone.float(), 3, 1), [2] * 4), 3, 1)  # what whole squares of what is gone cover
    assert torch.equal(squares > 0, gone)


def test_drop_block_keeps_the_mean_and_does_nothing_in_evaluation() -> None:
    drop, maps = DropBlock(0.3), torch.rand(8, 4, 10, 10)
    assert drop(torch.ones_like(maps)).mean().item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(drop.eval()(maps), maps)


def test_drop_block_takes_maps_smaller_than_its_squares() -> None:
    assert DropBlock(0.1)(torch.ones(2, 4, 2, 3)).shape == (2, 4, 2, 3)


def test_drop_block_stands_after_the_last_two_stages_and_adds_no_parameters() -> None:
    with_drop, without = ResNet12(first_width=2, drop=0.1), ResNet12(first_width=2)
    assert [isinstance(stage.drop, DropBlock) for stage in with_drop.stages] == [False, False, True, True]
    assert not any(isinstance(module, DropBlock) for module in without.modules())
    assert with_drop.state_dict().keys() == without.state_dict().keys()


# --- SoSN -------------------------------------------------------------------------------------------------------------


def sosn_on_resnet12(encoder: dict[str, Any] | None = None, **options: Any) -> sosn.SoSN:
    torch.manual_seed(0)
    return sosn.SoSN(**TINY | {"encoder": TINY["encoder"] | (encoder or {})} | options)


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["average", "full"])
def test_sosn_compares_the_features_of_the_encoder(relation: Any) -> None:
    model, tasks = sosn_on_resnet12(relation=relation).double(), episode(2)
    assert isinstance(model.encoder, ResNet12)
    images = torch.cat((tasks.support.flatten(0, 2), tasks.query.flatten(0, 1)))
    maps = reference(model.encoder, images, running=False).flatten(2)
    expected = model.compare_features(maps[:12].unflatten(0, (2, 3, 2)), maps[12:].unflatten(0, (2, 4)))
    torch.testing.assert_close(model.logits(tasks), expected, rtol=1e-8, atol=1e-8)
    loss = model.loss(tasks)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_similarity_net_is_that_of_the_four_block_encoder() -> None:
    shapes = [
        {name: tuple(value.shape) for name, value in model.similarity.state_dict().items()}
        for model in (sosn_on_resnet12(), sosn.SoSN(channels=1, input_size=28))
    ]
    assert shapes[0] == shapes[1]


def test_the_plain_engine_and_images_encoded_one_by_one_give_the_same_scores() -> None:
    model, tasks = moved(sosn_on_resnet12().double()), episode(2)
    with torch.no_grad():
        scores = model(tasks)
        with engine("plain"):
            torch.testing.assert_close(model(tasks), scores, rtol=0, atol=1e-10)
        images = torch.cat((tasks.support.flatten(0, 2), tasks.query.flatten(0, 1)))
        maps = torch.cat([model.encode(image[None]) for image in images])
        alone = model.compare_features(maps[:12].unflatten(0, (2, 3, 2)), maps[12:].unflatten(0, (2, 4)))
        torch.testing.assert_close(model.score(alone), scores, rtol=0, atol=1e-10)
    assert scores.std() > 1e-6


@pytest.mark.slow
def test_bf16_moves_the_scores_little() -> None:
    try:
        check_bf16()
    except UsageError as error:
        pytest.skip(str(error))
    model, tasks = moved(sosn_on_resnet12()), episode(2)
    with torch.no_grad():
        plain = model(tasks)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(tasks)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, plain, rtol=0, atol=0.05)


@pytest.mark.slow
def test_it_is_saved_and_exported_like_any_other(tmp_path: Path) -> None:
    model = moved(sosn_on_resnet12({"pools": 2}))
    model.trained = True
    save_method(tmp_path / "a.safetensors", model)
    again, _ = load_method(tmp_path / "a.safetensors")
    with torch.no_grad():
        assert torch.equal(again(episode()), model(episode()))
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    assert export_onnx(again, tmp_path / "onnx", "own")["largest_difference"] <= 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": {"width": 0}}, "46 rows or more, not 20"),  # the features of the stages
        ({"input_size": 7}, "input_size is 7; resnet12 needs images of 8 pixels or more per side"),
    ],
)
def test_sosn_refuses_what_it_cannot_compare(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sosn_on_resnet12(**options)


# --- rivals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"sosn", "pixels", "maml", "meta_lstm"}))
def test_every_rival_that_keeps_its_encoder_takes_resnet12(name: str) -> None:
    torch.manual_seed(0)
    encoder = {"name": "resnet12", "width": 6, "first_width": 2}
    options: dict[str, Any] = {"channels": 1, "input_size": 32, "encoder": encoder}
    method = moved(METHODS[name](**options))
    with torch.no_grad():
        scores = method(episode(2, size=32))
    assert scores.shape == (2, 4, 3)
    assert scores.isfinite().all()
    assert len(batch_norms(method)) >= 17


@pytest.mark.parametrize(("name", "options"), [("maml", {}), ("meta_lstm", {}), ("matching", {"fine_tune_steps": 1})])
def test_methods_that_change_the_encoder_for_each_task_refuse_it(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="takes conv4 or conv4_pooled"):
        method_class(name)(**options | {"channels": 1, "input_size": 32, "encoder": "resnet12"})


def test_the_nearest_prototype_takes_the_encoder_as_it_is() -> None:
    model: Method = moved(sosn_on_resnet12({"pools": 2}))
    frozen = NearestPrototype.of(model)
    images = torch.rand(3, 1, 28, 28)
    with torch.no_grad():
        ours, theirs = frozen.encode(images), model.encode(images)
    assert torch.equal(ours, theirs)
