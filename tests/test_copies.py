"""Copies of an image that evaluation looks at besides the image itself."""

import math

import pytest
import torch

from sosn.copies import evaluation_copies, scaled
from sosn.warping import seen_through


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
    found = list(evaluation_copies(images, mirror=True, scales=2))
    shares = [1.0, *(math.exp(sign * 0.15 * step) for step in (1, 2) for sign in (1, -1))]
    assert len(found) == 10
    for copy, (side, share) in zip(found, ((s, share) for s in (images, images.flip(-1)) for share in shares), strict=True):
        torch.testing.assert_close(copy, scaled(side, share) if share != 1 else side)
    assert [one is images for one in evaluation_copies(images, mirror=False, scales=0)] == [True]
