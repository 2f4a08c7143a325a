"""What the first block's Triton kernels share: a convolution is a matrix product with patches that are gathered on the way.

Kernels go over cells, the four positions that are pooled together. The 4×4 patch of a cell holds the 3×3 patches of its four
positions; number n of the four lies in row n // 2 and column n % 2. The numbers of a patch go by channel, row and column. A
program stays for many tiles of cells, so that weights are loaded and sums are stored once.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sosn.kernel.triton.launch import power

CHANNELS = 64  # filters that one program takes at most
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class Moments(NamedTuple):
    """Batch norm's statistics; J is how many numbers a 3×3 patch has, of both sides for pairs."""

    values: Tensor  # (5, C): mean, variance, 1/√(variance + eps), scale, shift
    products: Tensor  # (J, C): E[p pᵀ] w
    averages: Tensor  # (J,): E[p]
    means: Tensor  # (2, E, c, H, W): mean map of each side over its members; empty without pairs


class Layout(NamedTuple):
    """How the input channels of a weight belong to the sides, and what surrounds a map."""

    group: int  # channels of one side, before as many of the other side follow
    padding: int
    precision: torch.dtype  # of the factors in matrix products

    def positions(self, height: int, width: int) -> tuple[int, int]:
        return height + 2 * self.padding - 2, width + 2 * self.padding - 2

    def pooled(self, height: int, width: int) -> tuple[int, int]:
        down, across = self.positions(height, width)
        return down // 2, across // 2


def filters_at_once(filters: int) -> int:
    return min(CHANNELS, max(16, power(filters)))


@triton.jit
def locate(row, area, wide):
    """Image, row and column of a cell, or of a position, that are numbered through all images."""
    return row // area, row % area // wide, row % area % wide


@triton.jit
def gather(
    images, image, y, x, here, height, width, C: tl.constexpr, PATCH: tl.constexpr, K: tl.constexpr, ONES: tl.constexpr,
    PADDING: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Patches (K, N) whose corners lie at (y, x) of images (B, C, H, W); with ONES their last number is followed by a 1."""
    k = tl.arange(0, K)[:, None]
    c = k // (PATCH * PATCH)
    dy = k // PATCH % PATCH
    dx = k % PATCH
    inside = (c < C) & here[None, :]
    if PADDING > 0:
        down = y[None, :] + dy
        across = x[None, :] + dx
        inside &= (down >= 0) & (down < height) & (across >= 0) & (across < width)
    corner = image.to(tl.int64) * (C * height * width) + y * width + x
    value = tl.load(images + corner[None, :] + ((c * height + dy) * width + dx), inside, 0.0)
    if ONES:
        value = tl.where((k == C * PATCH * PATCH) & here[None, :], 1.0, value)
    return value.to(TYPE)


@triton.jit
def weights_of(
    weight, o, k, side, filters, step_o, step_c, step_y, step_x, C: tl.constexpr, GROUP: tl.constexpr, SIDES: tl.constexpr,
    PATCH: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Weights of filters o for the numbers k of a patch of one side; the 3×3 patch lies at (Y, X) of it, and all else is 0."""
    c = k // (PATCH * PATCH)
    y = k // PATCH % PATCH - Y
    x = k % PATCH - X
    inside = (c < C) & (side < SIDES) & (y >= 0) & (y < 3) & (x >= 0) & (x < 3) & (o < filters)
    channel = c // GROUP * (SIDES * GROUP) + side * GROUP + c % GROUP
    return tl.load(weight + o * step_o + channel * step_c + y * step_y + x * step_x, inside, 0.0).to(TYPE)


@triton.jit
def scaled(
    weight, by, o, k, side, filters, step_o, step_c, step_y, step_x, C: tl.constexpr, GROUP: tl.constexpr,
    SIDES: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Weights for the numbers k of a 4×4 patch, times a number for each filter."""
    w = weights_of(weight, o, k, side, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 4, Y, X, TYPE)
    return (w.to(tl.float32 if tl.float64 != TYPE else TYPE) * by).to(TYPE)


@triton.jit
def multiply(left, right, start, WIDE: tl.constexpr):
    """start + left·right; Triton's interpreter multiplies no bfloat16."""
    if _INTERPRETED:
        left, right = left.to(WIDE), right.to(WIDE)
    return tl.dot(left, right, start, input_precision="tf32x3", out_dtype=WIDE)


@triton.jit
def within(k, Y: tl.constexpr, X: tl.constexpr, C: tl.constexpr):
    """Where number k of a 3×3 patch, or the 1 after it, stands in the 4×4 patch that holds it at (Y, X)."""
    return tl.where(k == 9 * C, 16 * C, k // 9 * 16 + (k // 3 % 3 + Y) * 4 + k % 3 + X)
