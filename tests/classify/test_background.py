"""Light-on-dark drawings are detected, inverted for the model, and reported."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import sosn
from sosn import FewShotClassifier, Gallery
from sosn.classify.background import Background, background_for, inverted
from sosn.data.bank import Bank
from sosn.encoder.preprocessing import Preprocessing
from sosn.errors import SosnWarning, UsageError
from sosn.method import PrototypicalNet
from tests.classify.test_image_type import from_archive

WAY = 5
SWITCH = r"polarity='as_is' \(--polarity as_is\) turns this off"


@pytest.fixture(scope="module")
def bank() -> Bank:
    """Characters that the shipped model never saw: 5 classes of 6 drawings."""
    whole = sosn.open_bank("glyphs", "test", alphabets=10, characters=5, drawings=6, seed=7)
    return whole.subset(whole.names[:WAY])


def _shown(bank: Bank) -> tuple[list[Tensor], list[str]]:
    """One drawing of each class, and its name."""
    return [bank.class_images(name)[0] for name in bank.names], list(bank.names)


def _asked(bank: Bank) -> list[Tensor]:
    return [image for name in bank.names for image in bank.class_images(name)[1:]]


def _negative(images: list[Tensor]) -> list[Tensor]:
    return [255 - image for image in images]


@pytest.mark.parametrize(
    ("preprocessing", "background"),
    [
        (Preprocessing(1, 28, [0.92], [0.2]), "light"),
        (Preprocessing(1, 28, [0.08], [0.2]), "dark"),
        (Preprocessing(1, 28, [0.08], [0.2], "inverted"), "light"),  # the mean is taken after that
        (Preprocessing(1, 28, [0.92], [0.2], "inverted"), "dark"),
        (Preprocessing(3, 84, [0.47, 0.45, 0.4]), None),
        (Preprocessing(1, 28), None),
        (Preprocessing(1, 28, std=[0.2]), None),  # 0 is no mean that was measured
        (Preprocessing(1, 28, mean_image=True), None),
    ],
)
def test_the_background_of_a_model_is_that_of_its_training_images(
    preprocessing: Preprocessing, background: Background | None
) -> None:
    assert background_for(preprocessing) == background
    assert background_for(preprocessing, "as_is") is None


def test_the_mean_image_gives_the_background_too() -> None:
    preprocessing = Preprocessing(1, 28, mean_image=True)
    preprocessing.take_mean(torch.full((1, 28, 28), 0.9))
    assert background_for(preprocessing) == "light"


@pytest.mark.parametrize(("name", "background"), [("glyphs", "light"), ("omniglot", "light"), ("mini-imagenet", None)])
def test_the_shipped_models_for_drawings_expect_a_light_background(name: str, background: Background | None) -> None:
    assert background_for(sosn.load(name).preprocessing) == background


@pytest.mark.parametrize("size", [28, 84])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_generated_character_is_inverted_on_the_wrong_background_only(size: int, channels: int) -> None:
    images = sosn.open_bank("glyphs", "val", alphabets=10, characters=6, drawings=4, size=size).images.expand(
        -1, channels, -1, -1
    )
    negative = 255 - images
    for background, unchanged, other in (("light", images, negative), ("dark", negative, images)):
        for given, count in ((unchanged, 0), (other, len(images))):
            found, inversions = inverted(given, background)  # type: ignore[arg-type]
            assert inversions == count
            assert torch.equal(found, unchanged)
        assert inverted(other, None)[1] == 0


def _tones(low: int, high: int) -> Tensor:
    """A ring between two tones: the first its background, the second its stroke."""
    across = torch.arange(28) - 13.5
    distance = (across[:, None] ** 2 + across**2).sqrt()
    return torch.where((distance - 8).abs() < 1.5, high, low).to(torch.uint8).view(1, 1, 28, 28)


@pytest.mark.parametrize(
    ("image", "count"),
    [
        (_tones(60, 200), 1),  # chalk on a grey board
        (_tones(60, 200) + (torch.arange(28) * 2).to(torch.uint8), 1),  # in a slanting light
        (_tones(110, 20), 0),  # ink on paper in the shade
        (torch.full((1, 1, 28, 28), 0, dtype=torch.uint8), 0),  # nothing at all
        (torch.full((1, 1, 28, 28), 255, dtype=torch.uint8), 0),
    ],
)
def test_the_background_is_detected_relative_to_the_range_of_the_image(image: Tensor, count: int) -> None:
    assert inverted(image, "light")[1] == count


@pytest.mark.parametrize("background", ["light", "dark"])
def test_a_grey_uneven_background_becomes_pure_and_strokes_are_kept(background: Background) -> None:
    board = _tones(60, 200)
    board[..., ::2, :] -= 8 * (board[..., ::2, :] == 60)  # half of it is darker than its median
    given, pure = (board, 255) if background == "light" else (255 - board, 0)
    found, count = inverted(given, background)
    assert count == 1
    strokes = round(255 * (200 - 60) / (255 - 60))  # as far from the background as they were, of what there is
    assert torch.equal(found == pure, board <= 60)
    assert found[board == 200].unique().tolist() == [255 - strokes if background == "light" else strokes]
    assert inverted(found, background)[1] == 0


def test_a_filled_shape_a_frame_and_colour_are_not_inverted() -> None:
    shape = torch.full((1, 3, 28, 28), 255, dtype=torch.uint8)
    shape[..., 3:25, 3:25] = 0  # most of it is dark, its border is not
    frame = torch.full((1, 3, 28, 28), 255, dtype=torch.uint8)
    frame[..., :2, :] = frame[..., -2:, :] = frame[..., :2] = frame[..., -2:] = 0  # its border is dark, most of it is not
    night = _tones(0, 255).repeat(1, 3, 1, 1)
    assert inverted(night, "light")[1] == 1
    night[:, 2] += 60 * (night[:, 2] == 0)  # deep blue
    for image in (shape, frame, night):
        assert inverted(image, "light")[1] == 0


def test_only_images_with_the_wrong_background_are_inverted() -> None:
    dark, light = _tones(0, 255), _tones(255, 0)
    found, count = inverted(torch.cat((dark, light, dark)), "light")
    assert count == 2
    assert torch.equal(found, light.repeat(3, 1, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["glyphs", "omniglot"])
def test_negatives_get_the_answers_of_their_originals(bank: Bank, model: str) -> None:
    (support, labels), queries = _shown(bank), _asked(bank)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of pictures that are left as they are
        plain = FewShotClassifier(model).fit(support, labels)
        expected = plain.similarities(queries)
    with pytest.warns(SosnWarning, match=f"^inverted 25 of 25 images from light on dark to dark on light, .*{SWITCH}"):
        np.testing.assert_array_equal(plain.similarities(_negative(queries)), expected)
    with pytest.warns(SosnWarning, match="^inverted 5 of 5 images"):
        inverted_support = FewShotClassifier(model).fit(_negative(support), labels)
    np.testing.assert_array_equal(inverted_support.similarities(queries), expected)
    mixed = [*_negative(queries[:1]), *queries[1:]]
    with pytest.warns(SosnWarning, match="^inverted 1 of 25 images"):
        np.testing.assert_array_equal(inverted_support.similarities(mixed), expected)


@pytest.mark.slow
def test_inversion_is_warned_of_once_per_call(bank: Bank) -> None:
    support, labels = _shown(bank)
    classifier = FewShotClassifier("glyphs").fit(support, labels)
    many = _negative(_asked(bank)) * 4  # more than are encoded at once
    for ask in (classifier.predict, classifier.answers, classifier.nearest):
        with pytest.warns(SosnWarning) as found:
            ask(many)
        assert len(found) == 1
        assert "100 of 100 images" in str(found[0].message)
        assert found[0].filename == __file__ or ask == classifier.nearest
    with pytest.warns(SosnWarning) as found:
        explained = classifier.explain(many[0])
    assert len(found) == 1
    assert explained == classifier.explain(255 - many[0])
    with pytest.warns(SosnWarning, match="^inverted 1 of 1 images"):
        classifier.partial_fit(_negative(support[:1]), labels[:1])


def test_as_is_inverts_nothing_and_is_saved(bank: Bank, tmp_path: Path) -> None:
    (support, labels), queries = _shown(bank), _asked(bank)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = FewShotClassifier("glyphs", polarity="as_is").fit(support, labels)
        found = plain.similarities(_negative(queries))
        assert np.abs(found - plain.similarities(queries)).max() > 0.1
        plain.save(tmp_path)
        loaded = FewShotClassifier.load(tmp_path)
        assert loaded.background_ is None
        np.testing.assert_array_equal(loaded.similarities(_negative(queries)), found)
    FewShotClassifier("glyphs").fit(support, labels).save(tmp_path)
    assert FewShotClassifier.load(tmp_path).background_ == "light"
    with pytest.raises(UsageError, match="polarity is 'inverted'; choose auto or as_is"):
        FewShotClassifier("glyphs", polarity="inverted").fit(support, labels)  # type: ignore[arg-type]


def test_a_method_without_image_statistics_gets_images_unchanged(bank: Bank) -> None:
    support, labels = _shown(bank)
    method = PrototypicalNet(channels=1, input_size=28)
    method.trained = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier = FewShotClassifier(method).fit(_negative(support), labels)
        assert classifier.background_ is None
        assert classifier.predict(_negative(support)).tolist() == labels


def test_a_gallery_s_warnings_name_the_line_that_called_it(bank: Bank, tmp_path: Path) -> None:
    negative = 255 - bank.class_images(bank.names[0])[:1]
    gallery = Gallery.create(tmp_path / "gallery", "glyphs")
    calls: list[Callable[[], object]] = [
        lambda: gallery.add("one", negative),
        lambda: gallery.add_classes({"other": negative}),
        lambda: gallery.search(negative),
        lambda: gallery.shortlist(negative),
    ]
    for call in calls:
        with pytest.warns(SosnWarning, match="^inverted") as found:
            call()
        assert [Path(one.filename) for one in found] == [Path(__file__)]


@pytest.mark.slow
def test_a_gallery_inverts_drawings_too(bank: Bank, tmp_path: Path) -> None:
    queries = _asked(bank)
    one = Gallery.create(tmp_path / "one", "glyphs")
    one.add_classes({name: bank.class_images(name)[:1] for name in bank.names})
    other = Gallery.create(tmp_path / "other", "glyphs")
    with pytest.warns(SosnWarning, match="^inverted 5 of 5 images") as found:
        other.add_classes({name: 255 - bank.class_images(name)[:1] for name in bank.names})
    assert len(found) == 1
    expected = one.search(queries)
    assert other.search(queries) == expected
    with pytest.warns(SosnWarning, match="^inverted 25 of 25 images"):
        assert one.search(_negative(queries)) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = Gallery.create(tmp_path / "plain", "glyphs", polarity="as_is")
        plain.add_classes({name: 255 - bank.class_images(name)[:1] for name in bank.names})
        answers, shortlists = plain.search(_negative(queries)), plain.shortlist(_negative(queries), 3)
        assert answers != expected
        again = Gallery(tmp_path / "plain")  # it remembers that pictures are left as they are
        assert (again.search(_negative(queries)), again.shortlist(_negative(queries), 3)) == (answers, shortlists)
    with pytest.warns(SosnWarning, match="^inverted 25 of 25 images"):
        assert one.shortlist(_negative(queries), 3) == one.shortlist(queries, 3)
    with pytest.raises(UsageError, match="choose auto or as_is"):
        Gallery.create(tmp_path / "third", "glyphs", polarity="no")  # type: ignore[arg-type]
    assert not (tmp_path / "third").exists()


def test_a_transparent_background_is_white(bank: Bank, tmp_path: Path) -> None:
    """As drawing programs save them: black throughout, and the ink is in the transparency."""
    (support, labels), queries = _shown(bank), _asked(bank)
    files = []
    for number, image in enumerate(queries):
        pixels = np.zeros((28, 28, 4), np.uint8)
        pixels[..., 3] = 255 - image[0].numpy()
        Image.fromarray(pixels).save(tmp_path / f"{number:02d}.png")
        files.append(tmp_path / f"{number:02d}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier = FewShotClassifier("glyphs").fit(support, labels)
        expected = classifier.similarities(queries)
        np.testing.assert_allclose(classifier.similarities(files), expected, atol=0.02)  # blending rounds
        np.testing.assert_array_equal(
            classifier.similarities([np.array(Image.open(file)) for file in files]), classifier.similarities(files)
        )


@pytest.mark.real_data
def test_negatives_of_omniglot_drawings_are_detected(real_data: Path) -> None:
    images = torch.cat(from_archive(real_data / "omniglot.tar.xz", 37, 300))
    assert inverted(images, "light")[1] == 0
    assert inverted(255 - images, "light")[1] == len(images) == 300


def _paper(background: int, ink: int) -> Tensor:
    """A dark cross on paper."""
    image = torch.full((1, 64, 64), background, dtype=torch.uint8)
    image[:, 20:44, 31:33] = image[:, 31:33, 20:44] = ink
    return image


def test_shaded_paper_with_a_glare_is_paper() -> None:
    glare, shade, speck = _paper(180, 150), _paper(200, 40), _paper(250, 30)
    glare[:, :8, :8] = 255
    shade = (shade.float() * torch.linspace(1, 0.7, 64)).to(torch.uint8)
    speck[0, 0, 0] = 255
    faint = torch.full((1, 64, 64), 20, dtype=torch.uint8)  # an all but black picture with a little noise is no drawing
    faint[:, ::7, ::7] = 40
    pictures = torch.stack((glare, shade, speck, faint))
    result, count = inverted(pictures, "light")
    assert count == 0
    assert torch.equal(result, pictures)
    assert inverted(255 - pictures[1:3], "light")[1] == 2
