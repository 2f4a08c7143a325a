"""Augmented images are the originals, changed by what was asked for, within its limits, and by nothing else."""

import math
import re
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sosn.data.augmentation import AugmentationSection, augment
from sosn.episode import Episode
from sosn.errors import UsageError

Array = npt.NDArray[np.float64]

EVERYTHING = AugmentationSection("episode", True, 0.1, 0.2, 20.0, 10.0, 0.3)
ONE_AT_A_TIME = (
    AugmentationSection(rotate="image"),
    AugmentationSection(flip=True),
    AugmentationSection(translate=0.2),
    AugmentationSection(zoom=0.3),
    AugmentationSection(turn=30.0),
    AugmentationSection(shear=20.0),
    AugmentationSection(jitter=0.4),
)
EXACT = ONE_AT_A_TIME[:2]

pytestmark = pytest.mark.usefixtures("one_thread")


def named(wanted: AugmentationSection) -> str:
    """What is on."""
    return "+".join(key.name for key in fields(wanted) if getattr(wanted, key.name) != key.default)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_episode(episodes: int = 2, channels: int = 3, height: int = 8, width: int = 8, seed: int = 0) -> Episode:
    """A 3-way 2-shot batch of float images with 4 queries each: 10 images an episode."""
    draw = generator(seed)
    support = torch.rand(episodes, 3, 2, channels, height, width, generator=draw)
    query = torch.rand(episodes, 4, channels, height, width, generator=draw)
    return Episode(support, query, torch.arange(4).remainder(3).expand(episodes, 4))


def as_uint8(episode: Episode) -> Episode:
    support, query = ((images * 255).round().to(torch.uint8) for images in (episode.support, episode.query))
    return Episode(support, query, episode.labels)


def repeated(image: Tensor, episodes: int = 2) -> Episode:
    """An episode of the same shape in which all images are this one, (C, H, W)."""
    return Episode(image.expand(episodes, 3, 2, *image.shape), image.expand(episodes, 4, *image.shape))


def by_episode(episode: Episode) -> Tensor:
    """All images: (E, 10, C, H, W)."""
    return torch.cat((episode.support.flatten(1, 2), episode.query), 1)


def every(episode: Episode) -> Tensor:
    """All images: (N, C, H, W)."""
    return by_episode(episode).flatten(0, 1)


def arrays(episode: Episode) -> Array:
    return every(episode).double().numpy()


def right_angles(before: Episode, after: Episode) -> Tensor:
    """By how many right angles each image was turned, (E, 10); each must be an exact copy of just one of the four."""
    originals, results = by_episode(before).numpy(), by_episode(after).numpy()
    equal = np.stack([(np.rot90(originals, turns, (-2, -1)) == results).all((-3, -2, -1)) for turns in range(4)])
    assert (equal.sum(0) == 1).all()
    return torch.from_numpy(equal.argmax(0))


def assert_share(chosen: Tensor, probability: float) -> None:
    """Hold a count of True against the central 99.9% of the binomial distribution."""
    test = stats.binomtest(int(chosen.sum()), chosen.numel(), probability)
    assert test.pvalue > 0.001, f"{int(chosen.sum())} of {chosen.numel()}"


# What holds for all of it


def test_without_augmentation_the_episode_is_unchanged() -> None:
    episode, draw = random_episode(), generator()
    assert augment(episode, AugmentationSection(), draw) is episode
    assert draw.get_state().equal(generator().get_state())


@pytest.mark.parametrize("wanted", [*ONE_AT_A_TIME, EVERYTHING], ids=named)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_shapes_and_labels_stay_and_the_dtype_follows_from_what_is_on(
    wanted: AugmentationSection, channels: int, dtype: torch.dtype
) -> None:
    episode = random_episode(channels=channels)
    if dtype == torch.uint8:
        episode = as_uint8(episode)
    else:
        episode = Episode(episode.support.to(dtype), episode.query.to(dtype), episode.labels)
    result = augment(episode, wanted, generator())
    assert result.support.shape == episode.support.shape
    assert result.query.shape == episode.query.shape
    assert result.labels is episode.labels
    expected = dtype if wanted in EXACT else torch.float32
    assert result.support.dtype == result.query.dtype == expected
    if expected == torch.float32:
        assert every(result).min() >= 0
        assert every(result).max() <= 1


@pytest.mark.parametrize("wanted", [*ONE_AT_A_TIME[2:], EVERYTHING], ids=named)
def test_uint8_images_give_what_the_same_images_in_0_to_1_give(wanted: AugmentationSection) -> None:
    whole = as_uint8(random_episode())
    share = Episode(whole.support / 255, whole.query / 255, whole.labels)
    torch.testing.assert_close(every(augment(whole, wanted, generator())), every(augment(share, wanted, generator())))


@pytest.mark.parametrize("wanted", [*ONE_AT_A_TIME, EVERYTHING], ids=named)
def test_the_same_seed_gives_the_same_images_and_another_does_not(wanted: AugmentationSection) -> None:
    episode = random_episode()
    first, again, other = (every(augment(episode, wanted, generator(seed))) for seed in (3, 3, 4))
    assert first.equal(again)
    assert not first.equal(other)


@pytest.mark.parametrize("wanted", ONE_AT_A_TIME[2:], ids=named)
def test_every_image_is_augmented_differently(wanted: AugmentationSection) -> None:
    result = every(augment(repeated(torch.rand(3, 16, 16, generator=generator())), wanted, generator()))
    same = (result.unsqueeze(0) == result.unsqueeze(1)).flatten(2).all(-1)
    assert same.sum() == len(result)  # each equals itself alone


@pytest.mark.parametrize("wanted", [AugmentationSection(rotate="image"), AugmentationSection(flip=True)], ids=named)
def test_right_angles_and_flips_differ_within_an_episode(wanted: AugmentationSection) -> None:
    result = by_episode(augment(repeated(torch.rand(1, 8, 8), episodes=20), wanted, generator()))
    assert (result != result[:, :1]).flatten(1).any(1).all()


def test_the_originals_are_left_alone() -> None:
    episode = random_episode()
    before = every(episode).clone()
    augment(episode, EVERYTHING, generator())
    assert every(episode).equal(before)


def test_no_gradient_is_kept() -> None:
    episode = random_episode()
    episode = Episode(episode.support.requires_grad_(), episode.query, episode.labels)
    assert not augment(episode, EVERYTHING, generator()).support.requires_grad


def test_autocast_does_not_coarsen_the_images() -> None:
    episode = random_episode(height=64, width=64)
    expected = every(augment(episode, EVERYTHING, generator()))
    with torch.autocast("cpu", torch.bfloat16):
        assert every(augment(episode, EVERYTHING, generator())).equal(expected)


@pytest.mark.parametrize("rotate", ["episode", "image"])
def test_no_value_of_a_tensor_is_read_on_the_way(rotate: Any) -> None:
    with FakeTensorMode():  # these tensors have shapes and no values: reading one raises
        episode = Episode(torch.zeros(2, 3, 1, 3, 8, 8), torch.zeros(2, 4, 3, 8, 8))
        wanted = AugmentationSection(rotate, True, 0.1, 0.2, 20.0, 10.0, 0.3)
        assert augment(episode, wanted, generator()).support.shape == episode.support.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_never_waited_for() -> None:
    episode, draw = random_episode().to("cuda"), torch.Generator("cuda").manual_seed(0)
    augment(episode, EVERYTHING, draw)  # the first call may set things up
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert augment(episode, EVERYTHING, draw).support.device.type == "cuda"
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("key", "value", "highest"),
    [
        ("translate", -0.1, "1"), ("translate", 1.5, "1"), ("zoom", 1.0, "0.9"), ("zoom", math.nan, "0.9"),
        ("turn", 181.0, "180"),
        ("turn", -1.0, "180"), ("shear", 90.0, "80"), ("jitter", 1.1, "1"), ("jitter", math.inf, "1"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_with_key_value_and_range(key: str, value: float, highest: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{key} is {value}; it must lie between 0 and {highest}")):
        AugmentationSection(**{key: value})  # type: ignore[arg-type]


def test_an_unknown_rotation_is_refused() -> None:
    with pytest.raises(UsageError, match="rotate is 'all'; choose none, episode or image"):
        AugmentationSection(rotate="all")  # type: ignore[arg-type]


# Right angles and flips


@pytest.mark.parametrize("channels", [1, 3])
def test_one_right_angle_turns_all_images_of_an_episode(channels: int) -> None:
    episode = as_uint8(random_episode(400, channels))
    turns = right_angles(episode, augment(episode, AugmentationSection(rotate="episode"), generator()))
    assert (turns == turns[:, :1]).all()
    assert stats.chisquare(torch.bincount(turns[:, 0], minlength=4).numpy()).pvalue > 0.001


@pytest.mark.parametrize("channels", [1, 3])
def test_one_right_angle_an_image_comes_in_all_four_equally_often(channels: int) -> None:
    episode = random_episode(100, channels)
    turns = right_angles(episode, augment(episode, AugmentationSection(rotate="image"), generator()))
    assert stats.chisquare(torch.bincount(turns.flatten(), minlength=4).numpy()).pvalue > 0.001


@pytest.mark.parametrize("rotate", ["episode", "image"])
def test_right_angles_refuse_images_that_are_not_square(rotate: Any) -> None:
    with pytest.raises(UsageError, match=f"rotate is '{rotate}', which needs square images, and images are 8×6"):
        augment(random_episode(width=6), AugmentationSection(rotate=rotate), generator())


@pytest.mark.parametrize("channels", [1, 3])
def test_a_flip_mirrors_half_of_the_images_and_leaves_the_others(channels: int) -> None:
    episode = as_uint8(random_episode(100, channels, width=6))
    before, after = every(episode).numpy(), every(augment(episode, AugmentationSection(flip=True), generator())).numpy()
    mirrored = (after == before[..., ::-1]).all((1, 2, 3))
    assert (mirrored | (after == before).all((1, 2, 3))).all()
    assert_share(torch.from_numpy(mirrored), 0.5)


# Shift, zoom, turn and shear


def test_a_shift_is_a_mix_of_slices_of_the_image_with_its_border_repeated() -> None:
    """Shifts are rarely whole pixels; between two, bilinear interpolation mixes the four whole shifts around it."""
    wanted, size, reach = AugmentationSection(translate=0.3), 12, 4  # 0.3 · 12 < 4
    point = torch.zeros(3, size, size)
    point[:, 6, 6] = 1
    light = arrays(augment(repeated(point), wanted, generator()))[:, 0]
    episode = random_episode(height=size, width=size)
    before, after = arrays(episode), arrays(augment(episode, wanted, generator()))
    steps = np.arange(size)
    for spot, image, result in zip(light, before, after, strict=True):
        down, right = float((spot.sum(1) * steps).sum() - 6), float((spot.sum(0) * steps).sum() - 6)  # centre of the light
        assert abs(down) < 0.3 * size
        assert abs(right) < 0.3 * size
        padded = np.pad(image, ((0, 0), (reach, reach), (reach, reach)), mode="edge")
        expected = np.zeros_like(image)
        for y in (math.floor(down), math.floor(down) + 1):
            for x in (math.floor(right), math.floor(right) + 1):
                moved = padded[:, reach - y : reach - y + size, reach - x : reach - x + size]
                expected += (1 - abs(down - y)) * (1 - abs(right - x)) * moved
        np.testing.assert_allclose(result, expected, atol=1e-4)


def centres(height: int, width: int) -> tuple[Array, Array]:
    """x and y of each pixel's centre, from the image's centre, in pixels: two (H, W)."""
    x, y = np.meshgrid(np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2)
    return x, y


def windows(wanted: AugmentationSection, height: int, width: int, episodes: int = 2, seed: int = 0) -> Array:
    """For each image the map from a pixel's place to the place it shows, (N, 2, 3), read off images whose colour is the place.

    Interpolation keeps a linear colour as it is, so the colours of a changed image are the places its pixels show.
    """
    x, y = centres(height, width)
    image = torch.from_numpy(np.stack((x / width + 0.5, y / height + 0.5, 0 * x))).float()
    changed = arrays(augment(repeated(image, episodes), wanted, generator(seed)))
    maps = []
    for across, down, _ in changed:
        inside = (abs(across - 0.5) < 0.5 - 0.501 / width) & (abs(down - 0.5) < 0.5 - 0.501 / height)  # no border repeated
        places = np.stack((x, y, np.ones_like(x)), -1)[inside]
        mapped = np.stack(((across - 0.5) * width, (down - 0.5) * height), -1)[inside]
        solution, *_ = np.linalg.lstsq(places, mapped, rcond=None)
        np.testing.assert_allclose(places @ solution, mapped, atol=1e-4)  # it is an affine map
        maps.append(solution.T)
    return np.stack(maps)


def seen_through(image: Array, window: Array) -> Array:
    """One image (C, H, W) through a map (2, 3), pixel by pixel: bilinear between the four nearest, the border repeated."""
    _, height, width = image.shape
    x, y = centres(height, width)
    result = np.empty_like(image)
    for row in range(height):
        for column in range(width):
            across, down = window @ (x[row, column], y[row, column], 1)
            across = min(max(across + width / 2 - 0.5, 0), width - 1)
            down = min(max(down + height / 2 - 0.5, 0), height - 1)
            left, top = math.floor(across), math.floor(down)
            right, bottom = min(left + 1, width - 1), min(top + 1, height - 1)
            over, under = across - left, down - top
            result[:, row, column] = (1 - under) * ((1 - over) * image[:, top, left] + over * image[:, top, right]) + under * (
                (1 - over) * image[:, bottom, left] + over * image[:, bottom, right]
            )
    return result


@pytest.mark.parametrize(
    "wanted",
    [
        AugmentationSection(turn=40.0),
        AugmentationSection(zoom=0.4),
        AugmentationSection(shear=30.0),
        AugmentationSection(translate=0.2),
        AugmentationSection(translate=0.1, zoom=0.3, turn=180.0, shear=15.0),
    ],
    ids=named,
)
@pytest.mark.parametrize(("height", "width"), [(9, 9), (8, 11)])
def test_moved_images_are_the_originals_through_one_affine_window(wanted: AugmentationSection, height: int, width: int) -> None:
    episode = random_episode(height=height, width=width)
    results = arrays(augment(episode, wanted, generator()))
    for image, window, result in zip(arrays(episode), windows(wanted, height, width), results, strict=True):
        np.testing.assert_allclose(result, seen_through(image, window), atol=1e-4)


def assert_fills(values: Array, low: float, high: float) -> None:
    """The values look uniform between the two ends."""
    assert stats.kstest(values, "uniform", (low, high - low)).pvalue > 0.001, (values.min(), values.max())


def test_a_turn_is_a_rotation_by_up_to_its_degrees() -> None:
    maps = windows(AugmentationSection(turn=30.0), 9, 12, episodes=30)
    linear = maps[:, :, :2]
    np.testing.assert_allclose(linear @ linear.swapaxes(1, 2), np.broadcast_to(np.eye(2), linear.shape), atol=1e-4)
    assert (np.linalg.det(linear) > 0).all()
    np.testing.assert_allclose(maps[:, :, 2], 0, atol=1e-4)
    assert_fills(np.degrees(np.arctan2(linear[:, 1, 0], linear[:, 0, 0])), -30, 30)


def test_a_zoom_scales_both_sides_alike_by_up_to_its_share() -> None:
    maps = windows(AugmentationSection(zoom=0.3), 9, 12, episodes=30)
    scale = 1 / maps[:, 0, 0]
    expected = np.eye(2, 3) / scale[:, None, None]
    np.testing.assert_allclose(maps, expected, atol=1e-4)
    assert_fills(scale, 0.7, 1.3)


def test_a_shear_slants_by_up_to_its_degrees() -> None:
    maps = windows(AugmentationSection(shear=60.0), 9, 12, episodes=30)
    slant = maps[:, 0, 1].copy()
    maps[:, 0, 1] = 0
    np.testing.assert_allclose(maps, np.broadcast_to(np.eye(2, 3), maps.shape), atol=1e-4)
    assert_fills(np.degrees(np.arctan(slant)), -60, 60)


def test_a_shift_moves_by_up_to_its_share_of_either_side() -> None:
    maps = windows(AugmentationSection(translate=0.2), 9, 12, episodes=30)
    np.testing.assert_allclose(maps[:, :, :2], np.broadcast_to(np.eye(2), (300, 2, 2)), atol=1e-4)
    assert_fills(maps[:, 0, 2] / 12, -0.2, 0.2)
    assert_fills(maps[:, 1, 2] / 9, -0.2, 0.2)
    assert abs(stats.pearsonr(maps[:, 0, 2], maps[:, 1, 2]).statistic) < 0.2


# Jitter


def luma(image: Array) -> Array:
    weights = np.array([0.299, 0.587, 0.114] if len(image) == 3 else [1 / len(image)] * len(image))
    return np.tensordot(weights, image, 1)


def jittered(image: Array, brightness: float, contrast: float, saturation: float) -> Array:
    """Brightness b: bx. Contrast c: m + c(x − m), m the mean grey. Saturation s: g + s(x − g), g the pixel's grey."""
    image = brightness * image
    image = luma(image).mean() + contrast * (image - luma(image).mean())
    image = luma(image) + saturation * (image - luma(image)) if len(image) == 3 else image
    return np.clip(image, 0, 1)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_jitter_is_brightness_then_contrast_then_saturation(channels: int) -> None:
    episode, draws = random_episode(30, channels), generator()
    sides = [torch.stack([torch.rand(30 * count, 1, 1, 1, generator=draws) for _ in range(3)], 1) for count in (6, 4)]
    made_by = 0.6 + 0.8 * torch.cat([side.view(30, -1, 3) for side in sides], 1).flatten(0, 1)  # by episode, support first
    results = arrays(augment(episode, AugmentationSection(jitter=0.4), generator()))
    for image, result, factors in zip(arrays(episode), results, made_by.tolist(), strict=True):
        np.testing.assert_allclose(result, jittered(image, *factors), atol=1e-5)


def test_strong_jitter_stays_in_0_to_1_and_keeps_grey_grey() -> None:
    episode = random_episode(20, channels=1)
    grey = Episode(episode.support.expand(-1, -1, -1, 3, -1, -1), episode.query.expand(-1, -1, 3, -1, -1))
    result = every(augment(grey, AugmentationSection(jitter=1.0), generator()))
    assert result.min() >= 0
    assert result.max() <= 1
    assert result[:, 0].equal(result[:, 1])
    assert result[:, 0].equal(result[:, 2])
