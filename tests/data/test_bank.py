"""A bank holds images ordered by class, and refuses what it cannot hold."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.dataset import open_bank
from sosn.errors import DataError, UsageError

LABELS = torch.tensor([2, 0, 1, 2, 0, 2])
GROUPS = torch.tensor([50, 10, 30, 51, 11, 52])
NAMES = ("ant", "bee", "cat")


def numbered_images(count: int, channels: int = 1, size: int = 2) -> Tensor:
    """Images in which every pixel is the number of the image."""
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, channels, size, size)


def unsorted_bank() -> Bank:
    return Bank(numbered_images(6), LABELS, NAMES, GROUPS)


def first_pixels(images: Tensor) -> list[int]:
    return [int(image[0, 0, 0]) for image in images]


def random_images(count: int, channels: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, 5, 4), generator=draw, dtype=torch.uint8)


def test_unsorted_labels_are_sorted_together_with_images_and_groups() -> None:
    bank = unsorted_bank()
    assert bank.groups is not None
    assert bank.labels.tolist() == [0, 0, 1, 2, 2, 2]
    assert first_pixels(bank.images) == [1, 4, 2, 0, 3, 5]
    assert bank.groups.tolist() == [10, 11, 30, 50, 51, 52]


def test_the_input_tensors_are_not_changed() -> None:
    images, labels, groups = numbered_images(6), LABELS.clone(), GROUPS.clone()
    Bank(images, labels, NAMES, groups)
    assert first_pixels(images) == [0, 1, 2, 3, 4, 5]
    assert labels.equal(LABELS)
    assert groups.equal(GROUPS)


def test_counts_and_starts_describe_the_run_of_rows_of_each_class() -> None:
    bank = unsorted_bank()
    assert bank.counts.tolist() == [2, 1, 3]
    assert bank.starts.tolist() == [0, 2, 3]
    for number, (start, count) in enumerate(zip(bank.starts.tolist(), bank.counts.tolist(), strict=True)):
        assert bank.labels[start : start + count].tolist() == [number] * count


def test_length_channels_and_size_are_those_of_the_images() -> None:
    bank = Bank(numbered_images(6, channels=3, size=7), LABELS, NAMES)
    assert (len(bank), bank.channels, bank.size, bank.device.type) == (6, 3, 7, "cpu")


def test_from_classes_keeps_the_order_of_names_and_images() -> None:
    images = numbered_images(5)
    bank = Bank.from_classes({"zebra": images[3:], "ape": images[:3]})
    assert bank.names == ("zebra", "ape")
    assert bank.labels.tolist() == [0, 0, 1, 1, 1]
    assert first_pixels(bank.images) == [3, 4, 0, 1, 2]


def test_class_images_returns_exactly_the_images_of_a_class() -> None:
    bank = unsorted_bank()
    assert [first_pixels(bank.class_images(name)) for name in NAMES] == [[1, 4], [2], [0, 3, 5]]


def test_a_subset_keeps_images_groups_and_order_and_renumbers_the_labels() -> None:
    part = unsorted_bank().subset(["cat", "ant"])
    assert part.groups is not None
    assert part.names == ("ant", "cat")
    assert part.labels.tolist() == [0, 0, 1, 1, 1]
    assert first_pixels(part.images) == [1, 4, 0, 3, 5]
    assert part.groups.tolist() == [10, 11, 50, 51, 52]


@pytest.mark.parametrize(
    ("least", "names"), [(0, NAMES), (1, NAMES), (2, ("ant", "cat")), (3, ("cat",)), (4, ())], ids=lambda value: str(value)
)
def test_with_at_least_drops_exactly_the_classes_with_fewer_images(least: int, names: tuple[str, ...]) -> None:
    bank = unsorted_bank()
    kept = bank.with_at_least(least)
    assert kept.names == names
    assert all(kept.class_images(name).equal(bank.class_images(name)) for name in names)


@pytest.mark.parametrize("channels", [1, 3])
def test_mean_and_std_are_those_of_the_pixels_in_double_precision(channels: int) -> None:
    images = random_images(6, channels, seed=0)
    mean, std = Bank(images, LABELS, NAMES).mean_std()
    pixels = images.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), rtol=1e-12)


def test_the_std_of_constant_images_stays_above_zero() -> None:
    mean, std = Bank.from_classes({"white": torch.full((2, 1, 2, 2), 255, dtype=torch.uint8)}).mean_std()
    assert mean == [1.0]
    assert std[0] > 0


def test_the_fingerprint_does_not_depend_on_the_order_classes_came_in() -> None:
    sorted_bank = Bank(numbered_images(6)[LABELS.argsort(stable=True)], LABELS.sort().values, NAMES)
    assert Bank(numbered_images(6), LABELS, NAMES).fingerprint == sorted_bank.fingerprint


def test_the_fingerprint_changes_with_one_pixel() -> None:
    images = numbered_images(6)
    before = Bank(images, LABELS, NAMES).fingerprint
    images[3, 0, 1, 1] += 1
    assert Bank(images, LABELS, NAMES).fingerprint != before


def test_the_fingerprint_changes_with_a_name_and_with_the_class_of_an_image() -> None:
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    banks = [
        Bank(images, torch.tensor([0, 0, 1, 1]), ("a", "b")),
        Bank(images, torch.tensor([0, 0, 1, 1]), ("a", "c")),
        Bank(images, torch.tensor([0, 0, 0, 1]), ("a", "b")),
    ]
    assert len({bank.fingerprint for bank in banks}) == 3


def test_a_bank_moved_to_a_device_is_the_same_bank() -> None:
    bank = unsorted_bank()
    moved = bank.to("cpu")
    assert moved.groups is not None
    assert bank.groups is not None
    assert moved.images.equal(bank.images)
    assert moved.groups.equal(bank.groups)
    assert moved.fingerprint == bank.fingerprint


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 4, 4), "float32"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.int64), "int64"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), r"\(2, 4, 4\)"),
    ],
    ids=["float", "int64", "three axes"],
)
def test_images_of_another_type_or_shape_are_refused_and_described(images: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=rf"M×C×H×W uint8 images, not .*{message}"):
        Bank(images, torch.tensor([0, 1]), ("a", "b"))


@pytest.mark.parametrize(
    "wrong",
    [{"labels": torch.tensor([0, 1])}, {"labels": torch.tensor([[0, 1, 1]])}, {"groups": torch.tensor([0, 1])}],
    ids=["too few labels", "two axes of labels", "too few groups"],
)
def test_a_number_of_labels_or_groups_other_than_that_of_images_is_refused(wrong: dict[str, Any]) -> None:
    given = {"labels": torch.tensor([0, 1, 1]), "groups": None} | wrong
    with pytest.raises(DataError, match="one label for each image, and one group and one drawer"):
        Bank(numbered_images(3), given["labels"], ("a", "b"), given["groups"])


@pytest.mark.parametrize("labels", [[0, 1, 2], [-1, 0, 1]], ids=["too high", "negative"])
def test_labels_without_a_class_are_refused_naming_the_range(labels: list[int]) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        Bank(numbered_images(3), torch.tensor(labels), ("a", "b"))


def test_a_class_without_images_is_refused_by_name_with_the_way_out() -> None:
    with pytest.raises(DataError, match="class 'bee' has no images: add some or drop the class"):
        Bank(numbered_images(2), torch.tensor([0, 2]), NAMES)


def test_unknown_and_duplicate_class_names_are_refused() -> None:
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    bank = Bank(images, torch.tensor([0, 1]), ("first", "second"))
    with pytest.raises(DataError, match="did you mean 'first'"):
        bank.subset(["frist"])
    with pytest.raises(DataError, match="there is no class 'third'"):
        bank.class_images("third")
    with pytest.raises(DataError, match="same name"):
        Bank(images, torch.tensor([0, 1]), ("first", "first"))
    with pytest.raises(DataError, match="one shape"):
        Bank.from_classes({})


def test_the_fingerprint_depends_on_shapes_and_groups() -> None:
    wide = Bank(torch.zeros(2, 1, 2, 8, dtype=torch.uint8), torch.tensor([0, 0]), ("a",))
    square = Bank(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 0]), ("a",))
    grouped = Bank(square.images, square.labels, ("a",), torch.tensor([0, 1]))
    assert len({wide.fingerprint, square.fingerprint, grouped.fingerprint}) == 3


def test_labels_are_whole_numbers_and_options_of_a_dataset_are_checked() -> None:
    with pytest.raises(DataError, match="whole numbers"):
        Bank(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), ("a",))
    with pytest.raises(UsageError, match="did you mean 'alphabets'"):
        open_bank("glyphs", "val", alphabet=10)
