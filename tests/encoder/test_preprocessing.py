"""From images as a file gives them to what a model sees."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sosn.data.dataset import open_bank
from sosn.encoder.preprocessing import Preprocessing
from sosn.errors import UsageError
from sosn.method import SoSN
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.training.setup import build


def picture(channels: int, height: int = 8, width: int = 8, seed: int = 0) -> Tensor:
    """One uint8 image, as a batch."""
    return torch.randint(0, 256, (1, channels, height, width), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def resized(image: Tensor, size: int) -> Tensor:
    """Each channel of a float image, resized by Pillow, whose bilinear filter is antialiased."""
    channels = [Image.fromarray(channel.numpy()).resize((size, size), Image.Resampling.BILINEAR) for channel in image[0]]
    return torch.stack([torch.from_numpy(np.array(channel)) for channel in channels])[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uint8_images_become_0_to_1(dtype: torch.dtype) -> None:
    image = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(1, 1, 3, 3)
    result = Preprocessing(1, 3)(image, dtype)
    assert result.dtype == dtype
    torch.testing.assert_close(result[0, 0, 0], torch.tensor([0.0, 0.2, 1.0], dtype=dtype))


@pytest.mark.parametrize(("given", "channels"), [(1, 1), (3, 3), (1, 3), (3, 1)])
@pytest.mark.parametrize("size", [8, 5])
def test_float_images_give_what_their_uint8_originals_give(given: int, channels: int, size: int) -> None:
    image = picture(given)
    preprocessing = Preprocessing(channels, size, [0.4] * channels, [0.3] * channels, "inverted")
    assert torch.equal(preprocessing(image.float() / 255, torch.float32), preprocessing(image, torch.float32))


def test_an_image_of_the_right_size_is_left_alone_by_default() -> None:
    image = torch.rand(2, 3, 8, 8)
    assert torch.equal(Preprocessing(3, 8)(image, torch.float32), image)


@pytest.mark.parametrize(("height", "width", "size"), [(8, 8, 5), (40, 40, 28), (60, 33, 28), (12, 9, 20), (105, 105, 28)])
@pytest.mark.parametrize("channels", [1, 3])
def test_another_size_is_resized_with_antialiasing(channels: int, height: int, width: int, size: int) -> None:
    image = picture(channels, height, width).float() / 255
    result = Preprocessing(channels, size)(image, torch.float32)
    torch.testing.assert_close(result, resized(image, size), rtol=0, atol=1e-5)


def test_colour_becomes_grey_by_luma() -> None:
    image = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    expected = 0.299 * image[:, 0] + 0.587 * image[:, 1] + 0.114 * image[:, 2]
    torch.testing.assert_close(Preprocessing(1, 8)(image, torch.float64)[:, 0], expected)


def test_nothing_is_brought_to_the_images_from_the_host() -> None:
    """A tensor made of numbers in the program is copied to a GPU, which waits for it, and no CUDA graph can hold that."""
    made: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made.append(str(func))
            return func(*args, **(kwargs or {}))

    preprocessing = Preprocessing(1, 5, [0.4], [0.3], "inverted")
    with Watch():  # type: ignore[no-untyped-call]
        preprocessing(picture(3), torch.float32)
    assert "aten.mul.Tensor" in made
    assert "aten.lift_fresh.default" not in made


def test_grey_becomes_colour_by_repetition() -> None:
    image = torch.rand(2, 1, 8, 8)
    result = Preprocessing(3, 8)(image, torch.float32)
    assert result.shape == (2, 3, 8, 8)
    for channel in range(3):
        assert torch.equal(result[:, channel], image[:, 0])


def test_images_are_inverted_and_then_standardised_channel_by_channel() -> None:
    image = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    mean, std = [0.5, 0.25, 0.75], [0.5, 0.25, 2.0]  # exact in binary
    result = Preprocessing(3, 8, mean, std, "inverted").double()(image, torch.float64)
    for channel in range(3):
        torch.testing.assert_close(result[:, channel], ((1 - image[:, channel]) - mean[channel]) / std[channel])


def test_a_mean_without_a_std_only_centres_and_a_std_without_a_mean_only_scales() -> None:
    image = torch.rand(1, 1, 8, 8)
    torch.testing.assert_close(Preprocessing(1, 8, mean=[0.5])(image, torch.float32), image - 0.5)
    torch.testing.assert_close(Preprocessing(1, 8, std=[0.5])(image, torch.float32), 2 * image)


def test_statistics_are_settings_and_not_weights() -> None:
    assert Preprocessing(3, 8, [0.5] * 3, [0.5] * 3).state_dict() == {}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Preprocessing(2, 28), "channels is 2"),
        (lambda: Preprocessing(3, 28, mean=[0.5]), "mean has 1 values; 3 channels need 3"),
        (lambda: Preprocessing(1, 28, std=[0.5, 0.5, 0.5]), "std has 3 values; 1 channels need 1"),
        (lambda: Preprocessing(1, 28, std=[0.0]), "every value must be above 0"),
        (lambda: Preprocessing(1, 28, std=[-1.0]), "every value must be above 0"),
        (lambda: Preprocessing(1, 28, polarity="negative"), "'negative'; choose as_is or inverted"),  # type: ignore[arg-type]
    ],
)
def test_settings_without_meaning_are_refused(build: Callable[[], Preprocessing], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("given", [2, 4])
def test_images_of_other_than_1_or_3_channels_are_refused(given: int, channels: int) -> None:
    with pytest.raises(UsageError, match=f"images have {given} channels"):
        Preprocessing(channels, 8)(picture(given), torch.float32)


def test_whole_numbers_for_mean_and_std_do_not_make_a_model_of_whole_numbers() -> None:
    model = SoSN(channels=1, input_size=28, preprocessing={"mean": [0], "std": [1]})
    assert model.dtype == torch.float32
    with pytest.raises(UsageError, match="mean has 0 values"):
        SoSN(channels=1, input_size=28, preprocessing={"mean": []})


def test_a_mean_image_is_subtracted_pixel_by_pixel_and_fitted_like_any_image() -> None:
    mean = torch.rand(3, 8, 8, dtype=torch.float64)
    image = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    for channels, size, polarity in ((3, 8, "as_is"), (1, 5, "as_is"), (3, 5, "inverted")):
        plain = Preprocessing(channels, size, polarity=polarity).double()  # type: ignore[arg-type]
        taken = Preprocessing(channels, size, polarity=polarity, mean_image=True).double()  # type: ignore[arg-type]
        torch.testing.assert_close(taken(image, torch.float64), plain(image, torch.float64))
        taken.take_mean(mean)
        expected = plain(image, torch.float64) - plain(mean[None], torch.float64)
        torch.testing.assert_close(taken(image, torch.float64), expected)


def test_a_mean_image_beside_a_mean_is_refused() -> None:
    with pytest.raises(UsageError, match="mean and mean_image are both given"):
        Preprocessing(3, 8, mean=[0.5] * 3, mean_image=True)


def test_detail_brings_images_to_the_side_of_training_images_before_they_are_enlarged() -> None:
    sharp = torch.rand(2, 1, 105, 105, dtype=torch.float64)
    module = Preprocessing(1, 56, detail=28)
    assert (module.source, Preprocessing(1, 56).source) == (28, 56)
    small = F.interpolate(sharp, (28, 28), mode="bilinear", antialias=True)
    torch.testing.assert_close(module(sharp, torch.float64), module(small, torch.float64))
    torch.testing.assert_close(module(small, torch.float64), Preprocessing(1, 56)(small, torch.float64))
    large = F.interpolate(small, (56, 56), mode="bilinear")
    assert (module(large, torch.float64) - large).abs().max() > 1e-3  # as sharp as its side allows, so reduced first
    with pytest.raises(UsageError, match="detail is 84"):
        Preprocessing(1, 56, detail=84)


def test_a_model_of_enlarged_images_remembers_their_side() -> None:
    bank = open_bank("glyphs", "train", alphabets=10, characters=4, drawings=4)
    for size, detail in ((56, 28), (28, 0), (20, 0)):
        method = build(override(load_recipe("glyphs-5w1s"), [f"input_size={size}"]), bank)
        assert (method.preprocessing.size, method.preprocessing.detail) == (size, detail)
        assert method.config["preprocessing"]["detail"] == detail
