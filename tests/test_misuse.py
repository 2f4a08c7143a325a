"""Functions given the wrong kind of thing say which kind they take, and how to get one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sosn
from sosn.data.augmentation import AugmentationSection, augment
from sosn.errors import UsageError
from sosn.method import MAML, METHODS, Method, NearestPixels, method_class


@pytest.fixture(scope="module")
def bank() -> sosn.Bank:
    return sosn.open_bank("glyphs", "val", alphabets=10, characters=3, drawings=4)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_refuses_images_instead_of_an_episode(name: str) -> None:
    method: Method = method_class(name)(channels=1, input_size=28)
    method.trained = True
    images = torch.rand(2, 1, 28, 28)
    for ask in (method, method.predict):
        with pytest.raises(
            UsageError, match=rf"method '{name.replace('+', '[+]')}' takes an Episode, not Tensor: build one with sosn.Episode"
        ):
            ask(images)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a loss takes an Episode, not Tensor"):
        method.loss(images)  # type: ignore[arg-type]


def test_a_method_without_encode_refuses_to_compare() -> None:
    with pytest.raises(NotImplementedError, match="method 'maml' needs episodes as a whole"):
        MAML(channels=1, input_size=28).compare(torch.rand(1, 2, 1, 4), torch.rand(1, 2, 4))


@pytest.mark.parametrize("seed", [0, None, "my episodes"])
def test_a_seed_in_place_of_a_generator_is_refused_with_the_way_to_make_one(bank: sosn.Bank, seed: Any) -> None:
    sampler = sosn.EpisodeSampler(bank, 3, 1, 1)
    episode = sampler.draw(1, sosn.generator("mine", 0))
    calls: tuple[Callable[[], Any], ...] = (
        lambda: sampler.draw(1, seed),
        lambda: sampler.indices(1, seed),
        lambda: augment(episode, AugmentationSection(flip=True), seed),
    )
    for call in calls:
        with pytest.raises(UsageError, match=r"not a torch.Generator: create one with sosn.generator\('my episodes', 0\)"):
            call()


def test_generators_take_words_and_whole_numbers_alone() -> None:
    with pytest.raises(UsageError, match="strings and whole numbers"):
        sosn.generator("mine", 0.5)  # type: ignore[arg-type]


def test_values_of_a_wrong_type_are_refused(bank: sosn.Bank) -> None:
    with pytest.raises(UsageError, match=r"takes a bank, not str: open one with sosn.open_bank"):
        sosn.EpisodeSampler("glyphs", 5, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="compare takes results of evaluate, not NearestPixels"):
        sosn.compare(NearestPixels(), NearestPixels())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not PosixPath: write, for example, glyphs or folder:PATH"):
        sosn.open_bank(Path("photos").resolve(), "val")  # type: ignore[arg-type]


def test_a_recipe_is_taken_by_name_and_other_things_are_refused(tmp_path: Path) -> None:
    assert sosn.override("glyphs-5w1s", ["steps=7"]) == sosn.override(sosn.load_recipe("glyphs-5w1s"), ["steps=7"])
    with pytest.raises(UsageError, match=r"write \['steps=7'\]"):
        sosn.override("glyphs-5w1s", "steps=7")
    with pytest.raises(UsageError, match="did you mean 'glyphs-5w1s'"):
        sosn.train("glyphs-5w1", tmp_path / "run")
    with pytest.raises(UsageError, match="a recipe is dict; pass a Recipe, or its name, file or run folder"):
        sosn.train({}, tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
