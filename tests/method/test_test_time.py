"""Copies of an image that evaluation looks at besides the image itself."""

import math

import pytest
import torch

from sosn.method.test_time import TestTimeAugmentation, scaled, turned
from sosn.util.warping import seen_through


def window(*rows: tuple[float, float]) -> torch.Tensor:
    return torch.tensor([[[*row, 0.0] for row in rows]])


def test_a_window_that_is_turned_by_a_right_angle_turns_the_image() -> None:
    images = torch.rand(2, 3, 8, 8)
    turned = seen_through(images, window((0, 1), (-1, 0)))
    torch.testing.assert_close(turned, images.rot90(-1, (-2, -1)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [0.7, 1.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_a_copy_the_given_share_of_either_side_is_seen(share: float, dtype: torch.dtype) -> None:
    """Of an image that is x − 2y, also one that is not square, in the middle, where nothing is beyond the border."""
    x, y = ((torch.arange(count) + 0.5) * 2 / count - 1 for count in (24, 16))
    image = (x - 2 * y.unsqueeze(1)).expand(1, 1, 16, 24)
    found = scaled(image.to(dtype), share)
    assert found.dtype == dtype
    middle = (slice(None), slice(None), slice(4, 12), slice(6, 18))
    tolerance = 1e-5 if dtype == torch.float32 else 0.02  # half a unit of the last place of values up to 3
    torch.testing.assert_close(found.float()[middle], share * image[middle], atol=tolerance, rtol=0)


def test_beyond_an_image_its_border_goes_on() -> None:
    image = torch.arange(36.0).view(1, 1, 6, 6)
    copy = scaled(image, 2.0)
    for row, column in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        assert copy[0, 0, row, column] == image[0, 0, row, column]
    torch.testing.assert_close(copy[0, 0, 0, 2:4], image[0, 0, 0, 2:4] + torch.tensor([-0.5, 0.5]))


def test_copies_go_by_equal_steps_to_either_side_of_the_image_and_of_its_mirror_image() -> None:
    images = torch.rand(2, 1, 12, 9, dtype=torch.float64)
    found = list(TestTimeAugmentation(mirror=True, scales=2, turns=2).copies(images))
    assert len(found) == 18
    for copies, side in ((found[:9], images), (found[9:], images.flip(-1))):
        expected = [side, *(scaled(side, math.exp(sign * 0.15 * step)) for step in (1, 2) for sign in (1, -1))]
        expected += [turned(side, sign * 6 * step) for step in (1, 2) for sign in (1, -1)]
        for copy, one in zip(copies, expected, strict=True):
            torch.testing.assert_close(copy, one)
    assert [one is images for one in TestTimeAugmentation().copies(images)] == [True]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@pytest.mark.parametrize("degrees", [12.0, -30.0])
def test_a_copy_is_turned_anticlockwise_by_the_given_angle(degrees: float, dtype: torch.dtype, tolerance: float) -> None:
    """Of an image that is x − 2y in pixels, also one that is not square, in the middle, where nothing is beyond the border."""
    x, y = torch.arange(24, dtype=dtype) - 11.5, torch.arange(16, dtype=dtype).unsqueeze(1) - 7.5
    found = turned((x - 2 * y).expand(1, 1, 16, 24), degrees)
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    from_x, from_y = cosine * x - sine * y, sine * x + cosine * y  # rows go down
    middle = (slice(4, 12), slice(8, 16))
    torch.testing.assert_close(found[0, 0][middle], (from_x - 2 * from_y)[middle], atol=tolerance, rtol=0)


def test_a_copy_turned_by_a_right_angle_is_the_turned_image() -> None:
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(turned(images, 90), images.rot90(1, (-2, -1)), atol=1e-5, rtol=0)
