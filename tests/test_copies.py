"""Copies of an image that evaluation looks at besides the image itself."""

import math

import torch

from sosn.copies import evaluation_copies, seen_through, sizes, ways

GENERATORS = (((1.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (0.0, -1.0)), ((0.0, 1.0), (1.0, 0.0)), ((0.0, 1.0), (-1.0, 0.0)))


def test_a_copy_turned_by_a_right_angle_is_the_turned_image() -> None:
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(seen_through(ways(math.pi / 2)[3], images), images.rot90(-1, (-2, -1)), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen_through(ways(math.pi / 2)[7], images), images.rot90(1, (-2, -1)), atol=1e-5, rtol=0)


def test_the_eight_ways_are_the_exponentials_of_their_generators() -> None:
    expected = [torch.linalg.matrix_exp(sign * 0.2 * torch.tensor(one)) for sign in (1, -1) for one in GENERATORS]
    torch.testing.assert_close(torch.tensor(ways(0.2)), torch.stack(expected))


def test_sizes_are_pairs_that_undo_each_other() -> None:
    found = [window[0][0] for window in sizes(2)]
    torch.testing.assert_close(torch.tensor(found).log(), torch.tensor([0.15, -0.15, 0.3, -0.3]))
    assert all(window == ((window[0][0], 0.0), (0.0, window[0][0])) for window in sizes(2))
    assert sizes(0) == []


def test_an_image_is_seen_through_its_window() -> None:
    """One that grows by a along x and b along y, in the middle, where nothing is beyond the border."""
    size, (a, b) = 16, (0.3, -0.7)
    along = (torch.arange(size) + 0.5) * 2 / size - 1
    x, y = along.expand(size, size), along.view(-1, 1).expand(size, size)
    middle = (slice(None), slice(None), slice(4, 12), slice(4, 12))
    for window in (*sizes(1), *ways(0.2)):
        m = torch.tensor(window)
        expected = a * (m[0, 0] * x + m[0, 1] * y) + b * (m[1, 0] * x + m[1, 1] * y)
        found = seen_through(window, (a * x + b * y).view(1, 1, size, size))
        torch.testing.assert_close(found[middle], expected.view(1, 1, size, size)[middle], atol=1e-5, rtol=0)


def test_outside_the_border_is_repeated() -> None:
    images = torch.full((1, 1, 6, 9), 0.25)
    for window in ways(0.5):
        torch.testing.assert_close(seen_through(window, images), images)


def test_copies_keep_shape_and_dtype() -> None:
    images = torch.rand(2, 1, 6, 9, dtype=torch.bfloat16)
    copies = list(evaluation_copies(images, mirror=True, scales=2, affine=0.1))
    assert len(copies) == 2 * (1 + 4 + 8)
    assert all(copy.shape == images.shape and copy.dtype == images.dtype for copy in copies)
    assert torch.equal(copies[13], images.flip(-1))
    assert len(list(evaluation_copies(images, mirror=False, scales=0, affine=0.0))) == 1
