"""Generated characters: the same for the same seed, apart by split, and neither trivial nor hopeless."""

from functools import cache

import pytest
import torch

import sosn
from sosn.data.bank import Bank
from sosn.data.dataset import open_bank
from sosn.data.dataset.glyphs import glyphs
from sosn.errors import UsageError
from sosn.method import NearestPixels

SPLITS = ("train", "val", "test")


@cache
def small(split: str = "train", seed: int = 0) -> Bank:
    return glyphs(split, alphabets=10, characters=6, drawings=5, size=20, seed=seed)


@cache
def default_test_split() -> Bank:
    return open_bank("glyphs", "test")


def alphabets(bank: Bank) -> set[str]:
    return {name.split("/")[0] for name in bank.names}


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_gives_the_same_images_and_names(split: str) -> None:
    again = glyphs(split, alphabets=10, characters=6, drawings=5, size=20, seed=0)
    assert again.names == small(split).names
    assert again.images.equal(small(split).images)


def test_glyphs_do_not_depend_on_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    torch.manual_seed(123)
    state = torch.random.get_rng_state()
    try:
        again = glyphs("val", alphabets=10, characters=6, drawings=5, size=20)
        assert torch.random.get_rng_state().equal(state)
    finally:
        torch.random.set_rng_state(before)
    assert again.images.equal(small("val").images)


def test_another_seed_gives_other_images_and_names() -> None:
    assert small(seed=1).names != small(seed=0).names
    same = (small(seed=1).images == small(seed=0).images).flatten(1).all(1)
    assert not same.any()


def test_no_alphabet_is_in_two_splits() -> None:
    parts = [alphabets(small(split)) for split in SPLITS]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 10


def test_no_drawing_is_in_two_splits() -> None:
    images = torch.cat([small(split).images.flatten(1) for split in SPLITS])
    assert len(images.unique(dim=0)) == len(images)


@pytest.mark.parametrize(("split", "count"), [("train", 6), ("val", 1), ("test", 3)])
def test_a_split_has_its_share_of_alphabets_and_every_class_all_its_drawings(split: str, count: int) -> None:
    bank = small(split)
    assert len(alphabets(bank)) == count
    assert len(bank.names) == 6 * count
    assert bank.counts.tolist() == [5] * (6 * count)
    assert bank.images.shape == (30 * count, 1, 20, 20)


@pytest.mark.slow
def test_the_default_test_split_has_15_alphabets_of_24_characters_drawn_20_times_at_28_pixels() -> None:
    bank = default_test_split()
    assert len(alphabets(bank)) == 15
    assert len(bank.names) == 15 * 24
    assert bank.images.shape == (15 * 24 * 20, 1, 28, 28)


def test_classes_are_named_after_their_alphabet_and_number() -> None:
    bank = small()
    assert len(set(bank.names)) == len(bank.names)
    for name in alphabets(bank):
        assert [f"{name}/character{n:02}" in bank.names for n in range(1, 8)] == [True] * 6 + [False]


def test_glyphs_are_dark_ink_on_white_paper() -> None:
    images = default_test_split().images
    assert images.dtype == torch.uint8
    pixels = images.flatten(1)
    assert (pixels.amin(1) < 80).all()  # there is ink
    assert (pixels.amax(1) == 255).all()  # there is paper
    assert ((pixels == 255).float().mean(1) > 0.5).all()  # and more of it than of ink
    assert (pixels == 255).float().mean() > 0.8


def test_all_drawings_of_the_default_dataset_are_distinct() -> None:
    pixels = default_test_split().images.flatten(1)
    assert len(pixels.unique(dim=0)) == len(pixels)


def test_drawings_of_one_character_are_more_alike_than_drawings_of_two() -> None:
    bank = default_test_split()
    ink = torch.nn.functional.normalize(1 - bank.images.flatten(1).double() / 255, dim=1).unflatten(0, (-1, 20))
    means = ink.mean(1)  # of each class, so that ⟨mean, mean⟩ averages over pairs of drawings
    within = (20 * means.square().sum(-1) - 1) / 19  # without each drawing paired with itself
    between = (means @ means.mT).fill_diagonal_(0).sum() / (len(means) * (len(means) - 1))
    assert within.mean() > between + 0.1


@pytest.mark.parametrize(("way", "shot", "low", "high"), [(5, 1, 0.45, 0.55), (5, 5, 0.55, 0.70), (20, 1, 0.20, 0.35)])
def test_nearest_pixels_is_well_above_chance_and_far_from_perfect(way: int, shot: int, low: float, high: float) -> None:
    result = sosn.evaluate(NearestPixels(), default_test_split(), way=way, shot=shot, episodes=200)
    assert low < result.accuracy < high


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphabets": 9}, "alphabets is 9; 10 or more"),
        ({"characters": 0}, "characters is 0; it must be 1 or more"),
        ({"drawings": 1}, "drawings is 1; it must be 2 or more"),
        ({"size": 11}, "size is 11; it must be 12 or more"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_sizes_too_small_are_refused_by_name_with_the_least_allowed(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_bank("glyphs", "train", **options)


def test_an_unknown_split_is_refused_with_the_existing_splits() -> None:
    with pytest.raises(UsageError, match="split is 'dev'; glyphs have train, val and test"):
        glyphs("dev")


def test_an_unknown_dataset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"no dataset 'glyhps' \(did you mean 'glyphs'\?\)"):
        open_bank("glyhps", "train")


def test_a_place_after_glyphs_is_refused() -> None:
    with pytest.raises(UsageError, match="'glyphs' takes no ':here'"):
        open_bank("glyphs:here", "train")


def test_min_images_drops_classes_when_a_bank_is_opened() -> None:
    options = {"alphabets": 10, "characters": 2, "drawings": 3, "size": 12}
    assert len(open_bank("glyphs", "val", min_images=3, **options).names) == 2
    assert len(open_bank("glyphs", "val", min_images=4, **options).names) == 0
