"""Encoders by name, by table and as custom modules."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import sosn
from sosn.checkpoint.storage import load_method, save_method
from sosn.data.dataset import open_bank
from sosn.encoder import ENCODERS, Conv4, Encoder, build_encoder, encoder_class, encoder_options, register_encoder
from sosn.encoder.wrapped import WrappedEncoder
from sosn.errors import CheckpointError, UsageError
from sosn.method import MAML, Method, PrototypicalNet, SiameseNet, SoSN
from sosn.recipe.recipe import Recipe
from sosn.training.setup import build
from tests.method.test_rivals import episode

pytestmark = pytest.mark.usefixtures("one_thread")


def custom_module(width: int = 48) -> nn.Sequential:
    """A network that nobody registered: 28² → 7², with batch norm, unlike any of sosn's."""
    return nn.Sequential(nn.Conv2d(1, width, 5, padding=2), nn.BatchNorm2d(width), nn.AvgPool2d(4), nn.Sigmoid())


class Patches(Encoder):
    """Patches of 4×4 pixels, each through one linear layer."""

    name: ClassVar[str] = "patches"
    non_negative = True

    def __init__(self, channels: int = 3, width: int = 46, slope: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.project = nn.Conv2d(channels, width, 4, stride=4)
        self.slope = slope

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.leaky_relu(self.project(images), self.slope)


@pytest.fixture
def patches() -> Iterator[str]:
    """The name of an encoder that is registered during one test."""
    register_encoder(Patches)
    yield Patches.name
    del ENCODERS[Patches.name]


# --- by name and by table ---------------------------------------------------------------------------------------------


def test_a_name_or_a_table_builds_the_encoder_of_that_name() -> None:
    for spec in ("conv4", {"name": "conv4"}, {}):
        assert isinstance(build_encoder(spec, 1, 28), Conv4)
    built = build_encoder({"name": "conv4", "width": 48, "pools": 3}, 1, 84)
    assert built.table() == {"name": "conv4", "width": 48, "features": "relu", "pools": 3, "blocks": 4}
    assert built(torch.rand(2, 1, 84, 84)).shape == (2, 48, 9, 9)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "timm"])
def test_the_table_of_an_encoder_builds_it_again(name: str) -> None:
    first = build_encoder({"name": name} | ({} if name == "efficientnet_lite" else {"width": 5}), 1, 32)
    again = build_encoder(first.table(), 1, 32)
    assert again.table() == first.table()
    again.load_state_dict(first.state_dict())
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(again.eval()(images), first.eval()(images))
    assert first(images).shape[-1] == first.map_side(32)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "conv5",
            r"there is no encoder 'conv5' \(did you mean 'conv4'\?\); choose one of conv4, conv4_pooled",
        ),
        (
            {"name": "conv4", "widht": 3},
            r"encoder 'conv4' has no key 'widht' \(did you mean 'width'\?\); it has width",
        ),
        ({"name": "resnet12", "blocks": 5}, "encoder 'resnet12' has no key 'blocks'"),
        ({"name": "conv4", "channels": 3}, "encoder 'conv4' has no key 'channels'"),
        ({"name": "conv4", "width": "wide"}, "encoder 'conv4'.width is 'wide'; it must be a whole number"),
        ({"name": "conv4", "width": 0}, "width is 0; it must be 1 or more"),
        ({"name": "conv4", "features": "tanh"}, "features is 'tanh'.*choose one of 'relu', 'linear'"),
    ],
)
def test_names_and_options_that_there_are_not_are_refused_with_the_nearest(spec: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SoSN(encoder=spec)


def test_the_options_of_an_encoder_are_its_arguments_without_channels() -> None:
    assert list(encoder_options("conv4")) == ["width", "features", "pools", "blocks"]
    assert encoder_options("conv4_pooled") == {"width": int}


# --- custom modules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SoSN, PrototypicalNet, SiameseNet])
def test_a_module_that_returns_maps_is_an_encoder_and_keeps_its_weights(kind: type[Method]) -> None:
    module = custom_module()
    module.eval()(torch.rand(3, 1, 28, 28))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    options: dict[str, Any] = {"channels": 1, "input_size": 28, "encoder": module}
    method = kind(**options).eval()
    encoder = method.get_submodule("encoder")
    assert isinstance(encoder, WrappedEncoder)
    assert (encoder.width, encoder.map_side(28), encoder.map_side(20)) == (48, 7, 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    images = torch.rand(5, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(method.encode(images).flatten(1), module(images).flatten(1))
        scores = method(episode(2))
    assert scores.shape == (2, 4, 3)
    assert scores.isfinite().all()


def test_a_module_learns_with_the_method_around_it() -> None:
    module = custom_module()
    model = SoSN(channels=1, input_size=28, encoder=module)
    model.loss(episode(2)).backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in module.parameters())
    statistics = module[1].num_batches_tracked
    assert isinstance(statistics, Tensor)
    assert statistics.item() == 1  # one step, and nothing seen before it


def test_the_similarity_net_of_sosn_starts_as_ever_around_a_module() -> None:
    model = SoSN(channels=1, input_size=28, encoder=custom_module())
    layers = [layer for layer in model.similarity.modules() if isinstance(layer, nn.Linear)]
    assert all((layer.bias == 1).all() for layer in layers)
    assert layers[0].weight.std().item() == pytest.approx(0.01, rel=0.2)


def test_power_norms_of_positive_evidence_refuse_a_module_that_may_give_negative_features() -> None:
    with pytest.raises(UsageError, match="power_norm 'gamma' refuses negative co-occurrences"):
        SoSN(channels=1, input_size=28, power_norm="gamma", encoder=custom_module())


def test_probing_a_module_keeps_the_modes_of_its_parts() -> None:
    module = custom_module()
    module[1].eval()  # batch norm frozen by its owner
    encoder = build_encoder(module, 1, 28)
    encoder.map_side(28)
    assert (module.training, module[1].training) == (True, False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_module_may_have_another_precision(dtype: torch.dtype) -> None:
    assert build_encoder(custom_module().to(dtype), 1, 28).width == 48


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Flatten(), r"the encoder returns \(1, 784\) for one image; it must return feature maps \(1, K, h, w\)"),
        (nn.Flatten(2), r"returns \(1, 1, 784\)"),
        (nn.LSTM(28, 3), "returns tuple"),
    ],
)
def test_modules_that_return_no_feature_maps_are_refused(module: nn.Module, expected: str) -> None:
    if isinstance(module, nn.LSTM):
        module = nn.Sequential(nn.Flatten(0, 1), module)
    with pytest.raises(UsageError, match=expected):
        SoSN(channels=1, input_size=28, encoder=module)


def test_methods_that_adapt_their_encoder_refuse_a_module() -> None:
    with pytest.raises(UsageError, match="encoder is 'a module'; a method that adapts its encoder to each task takes conv4"):
        MAML(channels=1, input_size=28, encoder=custom_module())


def test_saving_a_wrapped_module_is_refused_with_advice(tmp_path: Path) -> None:
    model = SoSN(channels=1, input_size=28, encoder=custom_module())
    with pytest.raises(UsageError, match=r"the encoder is a Sequential.*subclass of sosn.Encoder.*sosn.register_encoder"):
        save_method(tmp_path / "model.safetensors", model)
    assert list(tmp_path.iterdir()) == []


# --- registered encoders ----------------------------------------------------------------------------------------------


def test_a_registered_encoder_is_known_to_methods_recipes_and_saved_models(patches: str, tmp_path: Path) -> None:
    assert encoder_class(patches) is Patches
    recipe = sosn.override(Recipe(), [f"encoder={patches}", "encoder.slope=0.2", "width=50"])
    assert recipe.to_table()["encoder"] == {"name": patches, "width": 50, "slope": 0.2}
    with pytest.raises(UsageError, match=r"there is no key 'encoder.slop' \(did you mean 'encoder.slope'"):
        sosn.override(recipe, ["encoder.slop=1"])
    method = build(recipe, open_bank("glyphs", "train", alphabets=10, characters=4, drawings=4)).eval()
    encoder = method.get_submodule("encoder")
    assert isinstance(encoder, Patches)
    assert (encoder.width, encoder.slope, encoder.map_side(28)) == (50, 0.2, 7)
    save_method(tmp_path / "model.safetensors", method)
    again, about = load_method(tmp_path / "model.safetensors")
    assert about["config"]["encoder"] == {"name": patches, "width": 50, "slope": 0.2}
    with torch.no_grad():
        assert torch.equal(again(episode()), method(episode()))


def test_where_it_is_not_registered_its_files_are_refused_with_its_name(patches: str, tmp_path: Path) -> None:
    save_method(tmp_path / "model.safetensors", SoSN(channels=1, input_size=28, encoder=patches))
    del ENCODERS[patches]
    with pytest.raises(CheckpointError, match="there is no encoder 'patches'"):
        load_method(tmp_path / "model.safetensors")
    register_encoder(Patches)  # as the fixture left it


def test_an_encoder_of_a_class_is_used_as_it_is_and_can_be_saved(patches: str, tmp_path: Path) -> None:
    custom = Patches(channels=1, width=46)
    weight = custom.project.weight.clone()
    model = SoSN(channels=1, input_size=28, encoder=custom)
    assert model.encoder is custom
    assert torch.equal(custom.project.weight, weight)
    save_method(tmp_path / "model.safetensors", model)
    assert torch.equal(load_method(tmp_path / "model.safetensors")[0].get_parameter("encoder.project.weight"), weight)


def test_a_class_without_a_name_is_refused() -> None:
    class Nameless(Patches):
        name = ""

    with pytest.raises(UsageError, match="Nameless has no name: give the class a name"):
        register_encoder(Nameless)
    assert "" not in ENCODERS


def test_images_smaller_than_an_encoder_takes_are_refused_with_the_least_size() -> None:
    for name, least in (("conv4", 10), ("conv4_pooled", 16), ("resnet12", 8)):
        build_encoder(name, 1, least)
        with pytest.raises(UsageError, match=f"input_size is {least - 1}; {name} needs images of {least} pixels or more"):
            build_encoder(name, 1, least - 1)


# --- timm -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "side"), [("test_resnet", 64), ("test_vit", 160)])
def test_a_timm_backbone_serves_any_method(model: str, side: int) -> None:
    pytest.importorskip("timm")
    options: dict[str, Any] = {"input_size": side, "encoder": {"name": "timm", "model": model}}
    tasks = sosn.Episode(torch.rand(1, 2, 2, 3, side, side), torch.rand(1, 3, 3, side, side))
    for method in (SoSN(**options), PrototypicalNet(**options), SiameseNet(embedding=4, **options)):
        with torch.no_grad():
            scores = method.eval()(tasks)
        assert scores.shape == (1, 3, 2)
        assert scores.isfinite().all()


def test_a_table_without_a_name_changes_the_usual_encoder() -> None:
    model = PrototypicalNet(channels=1, input_size=28, encoder={"width": 32})
    assert model.config["encoder"] == {"name": "conv4_pooled", "width": 32}


def test_images_that_a_module_cannot_take_are_refused_with_their_size() -> None:
    with pytest.raises(UsageError, match="encoder Conv2d cannot take images of 1×2×2"):
        SoSN(channels=1, input_size=2, encoder=nn.Conv2d(1, 64, 3))
