"""Turn drawings of any pen, paper and light into what the drawing models were trained on: black strokes of one pen on white."""

from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Grey = np.ndarray[Any, np.dtype[np.float32]]  # (H, W), from 0, paper, to 1, ink
Mask = np.ndarray[Any, np.dtype[np.bool_]]
LARGEST = 256  # longest side at which a drawing is looked at
SMALL = 64  # shorter sides have too few pixels to measure a pen: only their paper is cleaned
WORK = 160  # side at which strokes are measured and drawn again
COARSE = 48  # side at which the paper is estimated
WHOLE = (0, 0, WORK)  # top, left and side of a window
STROKE = 13  # of COARSE: wider than any stroke, so that its maximum filter removes them
WHITE, EVEN = 0.98, 0.5  # a sheet whose median is white and nowhere darker than EVEN is white throughout
BLACK, GREY = 0.9, 0.6  # darker ink is as dark as can be; GREY in small images, where thin strokes are all edge
FAINT = 0.06  # ink that is less dark than this is noise of the paper
SIMILAR = (0.75, 1.35)  # strokes of so many times this width stay as they are
SIZES = (0.35, 0.92)  # longest side of a drawing: smaller and larger ones are scaled to these
OFF_CENTRE = 0.17  # largest distance of a drawing's centre from that of the image
RING = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))  # the eight neighbours, clockwise from above
SPECK = 0.4  # of a squared stroke width: smaller blots are noise


def clean(image: Pixels) -> Grey:
    """Return the ink of a drawing, dark on light, (H, W, 3): how much darker than its paper each pixel is, in any channel.

    The paper may be grey, tinted or unevenly lit. The ink gets full contrast. A blank sheet has none.
    """
    values: Grey = image.astype(np.float32) / np.float32(255)
    paper = _paper(values)
    if np.median(values) >= WHITE and (paper.min() >= EVEN or min(image.shape[:2]) < SMALL):
        paper = np.ones_like(paper)
    dark = ((paper - values) / paper.clip(0.05)).max(-1).clip(0, 1)
    low, high = _levels(dark)
    if high - low < FAINT:
        return np.zeros_like(dark)
    found: Grey = ((dark - low) / (high - low)).clip(0, 1)
    return found


def standard(image: Pixels, pen: float) -> Pixels:
    """Return a drawing, dark on light, (H, W, 3), as black on white, (S, S), drawn with the pen of the training images.

    pen: its width, as a share of the side; 0 leaves strokes as they are. Very small, very large and remote drawings get a
    usual size and place. If pen, size and place are usual, only the paper changes.
    """
    ink = _squared(clean(image))
    if pen and min(image.shape[:2]) >= SMALL:
        work = _resized(ink, WORK)
        mask = _without_specks(work > 0.5)
        near = ndimage.maximum_filter(mask, 5).astype(np.float32)  # with the soft edges of strokes
        width = stroke_width(mask)
        window = _window(mask) if width else WHOLE
        if width and (window != WHOLE or not SIMILAR[0] <= width / (pen * WORK) <= SIMILAR[1]):
            ink = _drawn(_resized(_through(work * near, window), WORK) > 0.5, pen)
        else:
            ink = ink * _resized(near, len(ink))
    return (255 * (1 - ink)).round().astype(np.uint8)


def stroke_width(mask: Mask) -> float:
    """Return the typical width of the strokes of a mask in pixels, 0 without any: the ridge of a stroke is half as far in."""
    if not mask.any():
        return 0.0
    depth = ndimage.distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    ridge = mask & (depth >= ndimage.maximum_filter(depth, 3))
    return float(2 * np.median(depth[ridge]) - 0.5)


def thinned(mask: Mask) -> Mask:
    """Return the skeleton of a mask, by the algorithm of Zhang and Suen (1984)."""
    box = ndimage.find_objects(mask.astype(np.uint8))
    if not box:
        return mask
    found = np.pad(mask[box[0]], 1).astype(np.uint8)
    changed = True
    while changed:
        changed = False
        for turn in (0, 1):
            ring = [found[1 + y : found.shape[0] - 1 + y, 1 + x : found.shape[1] - 1 + x] for y, x in RING]
            count = sum(ring[1:], ring[0].copy())
            steps = sum(((one == 0) & (other == 1) for one, other in zip(ring, ring[1:] + ring[:1], strict=True)), np.uint8(0))
            north, east, south, west = ring[::2]
            sides = (east & south & (north | west)) if turn == 0 else (north & west & (east | south))
            removed = (found[1:-1, 1:-1] == 1) & (count >= 2) & (count <= 6) & (steps == 1) & (sides == 0)
            if removed.any():
                found[1:-1, 1:-1][removed] = 0
                changed = True
    lines = np.zeros_like(mask)
    lines[box[0]] = found[1:-1, 1:-1] == 1
    return lines


def _paper(values: Grey) -> Grey:
    """Estimate the paper behind the strokes of (H, W, 3): a closing of a coarse, smooth copy."""
    coarse = _each(values, (COARSE, COARSE), Image.Resampling.BOX)
    coarse = ndimage.median_filter(coarse, (3, 3, 1), mode="nearest")
    room = ((STROKE, STROKE), (STROKE, STROKE), (0, 0))
    closed = ndimage.grey_closing(np.pad(coarse, room, "edge"), (STROKE, STROKE, 1))
    smooth = ndimage.gaussian_filter(closed, (2, 2, 0))[STROKE:-STROKE, STROKE:-STROKE]
    return _each(smooth, (values.shape[1], values.shape[0]), Image.Resampling.BILINEAR)


def _each(values: Grey, size: tuple[int, int], way: Image.Resampling) -> Grey:
    """Resize every channel of (H, W, C) to (width, height)."""
    parts = [Image.fromarray(np.ascontiguousarray(one)).resize(size, way) for one in np.moveaxis(values, -1, 0)]
    return np.stack([np.asarray(one) for one in parts], -1)


def _levels(dark: Grey) -> tuple[float, float]:
    """Return the darkness of the paper, with its noise, and that of the ink: Otsu's two groups."""
    counts = np.histogram(dark, 64, (0, 1))[0].astype(np.float64)
    centres = (np.arange(64) + 0.5) / 64
    below, mass = counts.cumsum(), (counts * centres).cumsum()
    above = below[-1] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.nan_to_num(below * above * (mass / below - (mass[-1] - mass) / above) ** 2)
    cut = (int(between.argmax()) + 1) / 64
    ink, paper = dark[dark > cut], dark[dark <= cut]
    if not ink.size or not paper.size:
        return 0.0, 0.0
    level, spread = float(np.median(paper)), float(1.48 * np.median(np.abs(paper - np.median(paper))))
    low = min(level + 2 * spread, 0.5 * cut) if level + spread > 1 / 255 else 0.0
    share, black = (90, BLACK) if min(dark.shape) >= SMALL else (100, GREY)
    high = float(np.percentile(ink, share))
    return low, 1.0 if high > black else high


def _squared(ink: Grey) -> Grey:
    """Pad to a square with paper."""
    height, width = ink.shape
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    return np.pad(ink, ((top, side - height - top), (left, side - width - left)))


def _resized(ink: Grey, side: int) -> Grey:
    if ink.shape == (side, side):
        return ink
    return np.asarray(Image.fromarray(np.ascontiguousarray(ink)).resize((side, side), Image.Resampling.BILINEAR))


def _without_specks(mask: Mask) -> Mask:
    """Remove blots that are much smaller than a dot of the pen."""
    numbers, count = ndimage.label(mask, np.ones((3, 3)))
    if count < 2:
        return mask
    width = stroke_width(mask)
    large = np.bincount(numbers.ravel()) >= max(3, SPECK * width**2)
    large[0] = False
    found: Mask = large[numbers]
    return found


def _window(mask: Mask) -> tuple[int, int, int]:
    """Return the square, top, left and side, to look at, so that the drawing gets a usual size and place."""
    ends = [np.flatnonzero(mask.any(axis))[[0, -1]] for axis in (1, 0)]  # of rows, of columns
    longest = max(int(high - low) + 1 for low, high in ends)
    side = WORK if SIZES[0] * WORK <= longest <= SIZES[1] * WORK else round(longest / np.clip(longest / WORK, *SIZES))
    far = OFF_CENTRE * side
    centres = [(low + high + 1) / 2 for low, high in ends]
    top, left = (round(float(np.clip(WORK / 2, centre - far, centre + far)) - side / 2) for centre in centres)
    return top, left, side


def _through(ink: Grey, window: tuple[int, int, int]) -> Grey:
    """Return the part of an image in a window, which may reach beyond it."""
    top, left, side = window
    room = max(0, -top, -left, top + side - len(ink), left + side - len(ink))
    padded = np.pad(ink, room)
    return padded[top + room : top + room + side, left + room : left + room + side]


def _drawn(mask: Mask, pen: float) -> Grey:
    """Draw the skeleton of a mask with a pen."""
    width = stroke_width(mask)
    smooth = ndimage.gaussian_filter(mask.astype(np.float32), width / 5) > 0.5
    lines = thinned(smooth if smooth.any() else mask)
    far = ndimage.distance_transform_edt(~lines)
    found: Grey = (pen * WORK / 2 + 0.5 - far).clip(0, 1).astype(np.float32)
    return found
