"""join_pool in Triton. Maps are channels-last: a row of memory is one position with all its channels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sosn.kernel.triton.launch import TYPES, Launch, index, tiles
from sosn.kernel.triton.maximum import higher, leaky, through
from sosn.kernel.triton.norm_pool import cell_at, room
from sosn.kernel.triton.statistics import totals

APPLY, APPLY_FLAT = Launch(32, 4), Launch(64, 4)  # results, with and without pooling
REDUCE = Launch(16, 4, programs=1056)  # results
SPREAD, SPREAD_FLAT = Launch(16, 4), Launch(64, 4)  # cells, with and without pooling


def apply(first: Tensor, second: Tensor, values: tuple[Tensor, Tensor], pool: bool, leak: float) -> Tensor:
    """Both maps normalised, added up, rectified and pooled; values (5, C) of either are those of moments."""
    batch, channels, height, width = first.shape
    result = room(first, pool)
    high, across = result.shape[-2:]
    cells = batch * high * across
    launch, (tile, parts) = APPLY if pool else APPLY_FLAT, tiles(channels)
    _apply[(launch.grid(cells), parts)](
        first, second, result, *values, cells, channels, height, width, high, across, launch.block, tile, pool, leak,
        index(batch * height * width), TYPES[values[0].dtype], **launch.options,
    )  # fmt: skip
    return result


def backward(
    first: Tensor, second: Tensor, gradient: Tensor, values: tuple[Tensor, Tensor], dtype: torch.dtype, pool: bool, leak: float
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Gradients of both maps, and, (3, C) each, those of either batch norm's bias and weight, in dtype, and 0."""
    batch, channels, height, width = first.shape
    high, across = gradient.shape[-2:]
    cells, rows = batch * high * across, batch * height * width
    programs, (tile, parts), kind = REDUCE.grid(cells), tiles(channels), TYPES[values[0].dtype]
    sums = torch.empty(2, programs, 2, channels, device=first.device, dtype=values[0].dtype)
    _reduce[(programs, parts)](
        first, second, gradient, sums[0], sums[1], *values, cells, channels, height, width, high, across, REDUCE.block, tile,
        pool, leak, index(rows), kind, **REDUCE.options,
    )  # fmt: skip
    (shares, own), (others, other) = (totals(one, rows, dtype) for one in sums)
    d_first, d_second = torch.empty_like(first), torch.empty_like(second)
    step = 2 if pool else 1
    down, along = triton.cdiv(height, step), triton.cdiv(width, step)  # an odd last row or column is a cell by itself
    launch = SPREAD if pool else SPREAD_FLAT
    _spread[(launch.grid(batch * down * along), parts)](
        first, second, gradient, d_first, d_second, shares, others, *values, batch * down * along, channels, height, width,
        high, across, down, along, launch.block, tile, pool, leak, index(rows), kind, **launch.options,
    )  # fmt: skip
    return (d_first, d_second), (own, other)


@triton.jit
def _both(first, second, place, here, s, t, shift, WIDE: tl.constexpr):
    """The values of both maps at places, and the sum of both as normalised."""
    x = tl.load(first + place, here, 0.0).to(WIDE)
    y = tl.load(second + place, here, 0.0).to(WIDE)
    return x, y, x * s + y * t + shift


@triton.jit
def _affine(values, others, c, channels, WIDE: tl.constexpr):
    """Scales of both maps and the sum of their shifts, for the channels c."""
    known = c < channels
    s = tl.load(values + 3 * channels + c, known, 0.0).to(WIDE)
    t = tl.load(others + 3 * channels + c, known, 0.0).to(WIDE)
    shift = tl.load(values + 4 * channels + c, known, 0.0).to(WIDE) + tl.load(others + 4 * channels + c, known, 0.0).to(WIDE)
    return s, t, shift


@triton.jit
def _apply(
    first, second, result, values, others, cells, channels, height, width, high, wide, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, POOL: tl.constexpr, LEAK: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    cell = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)[:, None]
    here = (cell < cells) & (c < channels)
    s, t, shift = _affine(values, others, c, channels, WIDE)
    start, _image, _y, _x = cell_at(cell, high, wide, height, width, channels, POOL)
    place = start + c
    _one, _other, z = _both(first, second, place, here, s, t, shift, WIDE)
    if POOL:
        _one, _other, z1 = _both(first, second, place + channels, here, s, t, shift, WIDE)
        _one, _other, z2 = _both(first, second, place + width * channels, here, s, t, shift, WIDE)
        _one, _other, z3 = _both(first, second, place + (width + 1) * channels, here, s, t, shift, WIDE)
        z = higher(higher(z, z1), higher(z2, z3))
    tl.store(result + cell.to(tl.int64) * channels + c, leaky(z, LEAK), here)


@triton.jit
def _reduce(
    first, second, gradient, sums, other_sums, values, others, cells, channels, height, width, high, wide, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, POOL: tl.constexpr, LEAK: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient d that passed pooling and leaky ReLU, and of d times the normalised value of either map."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    known = c < channels
    s, t, shift = _affine(values, others, c, channels, WIDE)
    m = tl.load(values + c, known, 0.0).to(WIDE)
    n = tl.load(others + c, known, 0.0).to(WIDE)
    total = tl.zeros((BLOCK, CHANNELS), WIDE)
    own = tl.zeros((BLOCK, CHANNELS), WIDE)
    other = tl.zeros((BLOCK, CHANNELS), WIDE)
    for tile in range(tl.program_id(0), tl.cdiv(cells, BLOCK), tl.num_programs(0)):
        cell = tl.full((), BLOCK, INDEX) * tile + tl.arange(0, BLOCK)[:, None]
        here = (cell < cells) & known
        start, _image, _y, _x = cell_at(cell, high, wide, height, width, channels, POOL)
        place = start + c
        x, y, top = _both(first, second, place, here, s, t, shift, WIDE)
        if POOL:
            for corner in tl.static_range(1, 4):  # the first of those that are highest wins, as in PyTorch
                aside = (corner // 2 * width + corner % 2) * channels
                x1, y1, z1 = _both(first, second, place + aside, here, s, t, shift, WIDE)
                x = tl.where(z1 > top, x1, x)
                y = tl.where(z1 > top, y1, y)
                top = tl.maximum(top, z1)
        g = through(tl.load(gradient + cell.to(tl.int64) * channels + c, here, 0.0).to(WIDE), top, LEAK)
        total += g
        own += g * (x - m)
        other += g * (y - n)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = column < channels
    i = tl.load(values + 2 * channels + column, inside, 0.0).to(WIDE)
    j = tl.load(others + 2 * channels + column, inside, 0.0).to(WIDE)
    at = tl.program_id(0) * 2 * channels + column
    tl.store(sums + at, tl.sum(total, 0), inside)
    tl.store(sums + at + channels, tl.sum(own, 0) * i, inside)
    tl.store(other_sums + at, tl.sum(total, 0), inside)
    tl.store(other_sums + at + channels, tl.sum(other, 0) * j, inside)


@triton.jit
def _slope(values, shares, c, channels, WIDE: tl.constexpr):
    """Mean, mean of d and mean of d·x̂ over the deviation, for the channels c."""
    known = c < channels
    m = tl.load(values + c, known, 0.0).to(WIDE)
    i = tl.load(values + 2 * channels + c, known, 0.0).to(WIDE)
    share = tl.load(shares + c, known, 0.0).to(WIDE)
    return m, share, tl.load(shares + channels + c, known, 0.0).to(WIDE) * i


@triton.jit
def _spread(
    first, second, gradient, d_first, d_second, shares, other_shares, values, others, cells, channels, height, width, high,
    wide, down, across, BLOCK: tl.constexpr, CHANNELS: tl.constexpr, POOL: tl.constexpr, LEAK: tl.constexpr,
    INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """scale·(d − mean of d − x̂·mean of d·x̂) at every position of either map; d is the gradient where it passed, else 0."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    s, t, shift = _affine(values, others, c, channels, WIDE)
    m, share, own = _slope(values, shares, c, channels, WIDE)
    n, _same, other = _slope(others, other_shares, c, channels, WIDE)
    cell = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)[:, None]
    here = (cell < cells) & (c < channels)
    start, image, row, column = cell_at(cell, down, across, height, width, channels, POOL)
    pooled = here & (row < high) & (column < wide)
    g = tl.load(gradient + ((image * high + row) * wide + column).to(tl.int64) * channels + c, pooled, 0.0).to(WIDE)
    place = start + c
    x, y, z = _both(first, second, place, here, s, t, shift, WIDE)
    if POOL:
        right = here & (2 * column + 1 < width)
        below = here & (2 * row + 1 < height)
        x1, y1, z1 = _both(first, second, place + channels, right, s, t, shift, WIDE)
        x2, y2, z2 = _both(first, second, place + width * channels, below, s, t, shift, WIDE)
        x3, y3, z3 = _both(first, second, place + (width + 1) * channels, right & below, s, t, shift, WIDE)
        top = tl.maximum(tl.maximum(z, z1), tl.maximum(z2, z3))
        g = through(g, top, LEAK)
        d = tl.where(z == top, g, 0.0)  # the first of those that are highest wins, as in PyTorch
        d1 = tl.where((z1 == top) & (z < top), g, 0.0)
        d2 = tl.where((z2 == top) & (z < top) & (z1 < top), g, 0.0)
        d3 = tl.where((z < top) & (z1 < top) & (z2 < top), g, 0.0)
        _store(d_first, d_second, place + channels, right, d1 - share, x1 - m, y1 - n, own, other, s, t)
        _store(d_first, d_second, place + width * channels, below, d2 - share, x2 - m, y2 - n, own, other, s, t)
        aside = place + (width + 1) * channels
        _store(d_first, d_second, aside, right & below, d3 - share, x3 - m, y3 - n, own, other, s, t)
    else:
        d = through(g, z, LEAK)
    _store(d_first, d_second, place, here, d - share, x - m, y - n, own, other, s, t)


@triton.jit
def _store(d_first, d_second, place, here, d, x, y, own, other, s, t):
    tl.store(d_first + place, s * (d - x * own), here)
    tl.store(d_second + place, t * (d - y * other), here)
