"""Drawings or photos, and the model that fits."""

import tarfile
from pathlib import Path
from typing import IO, cast

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import sosn
from sosn.checkpoint.registry import shipped_models
from sosn.classify.image_type import SAMPLE, choose_model, image_type, type_of_pictures
from sosn.data.image import Picture, read_image


def _tones(channels: int) -> Tensor:
    """Smooth noise: like a photo, it has all tones."""
    coarse = torch.rand(6, channels, 8, 8, generator=sosn.generator("tones"))
    fine = F.interpolate(coarse, 64, mode="bilinear").expand(-1, 3, -1, -1)
    return (255 * fine).to(torch.uint8)


def test_generated_characters_are_drawings_on_white_and_on_black_paper() -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=3, drawings=2)
    assert image_type(bank.images.expand(-1, 3, -1, -1)) == "drawings"
    assert image_type(255 - bank.images.expand(-1, 3, -1, -1)) == "drawings"


def test_colour_and_grey_tones_are_photos() -> None:
    assert image_type(_tones(3)) == "photos"
    assert image_type(_tones(1)) == "photos"


def test_a_coloured_object_on_a_white_background_is_a_photo() -> None:
    images = torch.full((3, 3, 64, 64), 255, dtype=torch.uint8)
    images[:, 1:, 8:56, 16:48] = 30  # a red thing
    assert image_type(images) == "photos"


def test_a_small_thing_of_colour_is_a_photo_and_coloured_strokes_are_a_drawing() -> None:
    images = torch.full((2, 3, 64, 64), 245, dtype=torch.uint8)
    images[0, 1:, 25:37, 25:37] = 30  # a red thing that covers 3.5%, so that hardly any colour is left on average
    images[1, 1:, 10:13, 8:56] = 30  # as much red in strokes
    images[1, 1:, 40:43, 8:56] = 30
    assert [image_type(image.unsqueeze(0)) for image in images] == ["photos", "drawings"]


def test_half_white_and_half_black_is_no_paper() -> None:
    image = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    image[..., 32:] = 255
    assert image_type(image) == "photos"


def test_the_majority_decides() -> None:
    paper = torch.full((5, 3, 64, 64), 250, dtype=torch.uint8)
    assert image_type(torch.cat((paper, _tones(3)[:4]))) == "drawings"
    assert image_type(torch.cat((paper[:3], _tones(3)[:4]))) == "photos"


def test_the_image_type_of_many_pictures_is_that_of_a_few_from_all_over_the_list() -> None:
    drawing, photo = torch.full((3, 64, 64), 250, dtype=torch.uint8), _tones(3)[0]
    unread: Picture = "no such file.png"  # reading it would be an error
    assert SAMPLE == 32
    assert type_of_pictures([drawing]) == "drawings"
    assert type_of_pictures([drawing, photo] * 16) == "photos"  # all 32 are looked at: half is no majority
    assert type_of_pictures([drawing, unread] * 16 + [drawing]) == "drawings"  # of 33 every second
    assert type_of_pictures([drawing, unread, unread, unread] * 25) == "drawings"
    assert type_of_pictures([drawing] * 40 + [photo] * 60) == "photos"
    assert type_of_pictures([drawing] * 60 + [photo] * 40) == "drawings"


@pytest.mark.parametrize(
    ("kind", "shipped", "name"),
    [
        ("drawings", ["glyphs", "mini-imagenet", "omniglot"], "omniglot"),
        ("drawings", ["glyphs", "mini-imagenet"], "glyphs"),
        ("photos", ["glyphs", "mini-imagenet", "omniglot"], "mini-imagenet"),
    ],
)
def test_a_model_of_the_image_type_is_chosen_without_a_word(kind: str, shipped: list[str], name: str) -> None:
    assert choose_model(kind, shipped) == (name, None)  # type: ignore[arg-type]


def test_with_five_photos_of_each_class_the_model_is_one_that_was_trained_with_as_many() -> None:
    shipped = ["mini-imagenet", "mini-imagenet-5shot", "omniglot", "omniglot-5shot"]
    assert [choose_model("photos", shipped, shots)[0] for shots in (1, 4)] == ["mini-imagenet"] * 2
    assert [choose_model("photos", shipped, shots)[0] for shots in (5, 50)] == ["mini-imagenet-5shot"] * 2
    assert choose_model("photos", shipped[:1], 5)[0] == "mini-imagenet"
    assert choose_model("drawings", shipped, 5)[0] == "omniglot"


def test_a_missing_model_for_an_image_type_is_reported() -> None:
    name, note = choose_model("photos", ["glyphs"])
    assert name == "glyphs"
    assert note is not None
    assert "no shipped model was trained on photos" in note
    assert choose_model("drawings", ["mini-imagenet"])[1] is not None
    for kind in ("drawings", "photos"):
        assert choose_model(kind, shipped_models())[0] in shipped_models()


def from_archive(path: Path, every: int, count: int) -> list[Tensor]:
    """Some images of a tar archive, each as the classifier looks at it."""
    found: list[Tensor] = []
    with tarfile.open(path) as archive:
        images = (member for member in archive if member.name.endswith((".png", ".jpg")))
        for number, member in enumerate(images):
            if number % every == 0:
                found.append(read_image(Image.open(cast(IO[bytes], archive.extractfile(member))), 64, 3).unsqueeze(0))
            if len(found) == count:
                break
    return found


@pytest.mark.slow
@pytest.mark.real_data
def test_omniglot_is_drawings_and_mini_imagenet_photos(real_data: Path) -> None:
    drawings = from_archive(real_data / "omniglot.tar.xz", 37, 100)
    photos = from_archive(real_data / "mini-imagenet" / "val.tar.xz", 37, 100)
    assert sum(image_type(image) == "drawings" for image in drawings) >= 98
    assert sum(image_type(image) == "photos" for image in photos) >= 93  # dark grey ones are not; a set goes by its majority
