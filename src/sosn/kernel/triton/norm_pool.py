"""norm_pool in Triton. Maps are channels-last: a row of memory is one position with all its channels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sosn.kernel.batch_norm import Norm, Running
from sosn.kernel.triton.launch import TYPES, Launch, index, tiles, wide
from sosn.kernel.triton.maximum import higher, leaky, through
from sosn.kernel.triton.statistics import count_batch, norm_pointers, pointers, scale_and_shift, settle, totals, tracking

MOMENTS = Launch(64, 4, programs=1056)  # positions
APPLY, APPLY_FLAT = Launch(32, 4), Launch(64, 4)  # results, with and without pooling
REDUCE, REDUCE_ROUGH = Launch(64, 8, programs=528), Launch(16, 4)  # results
SPREAD, SPREAD_FLAT = Launch(16, 4), Launch(64, 4)  # cells, with and without pooling
ROUGH = 0.25  # of |bias|: with a |weight| below, rounding of the result hides too much of the normalised value
TINY = 1e-3  # a |weight| below is not divided by at all


def moments(maps: Tensor, weight: Tensor, bias: Tensor, offset: Tensor | None, eps: float, running: Running | None) -> Tensor:
    """Mean, biased variance, 1/√(variance + eps), scale and shift, (5, C), from one pass: sums about the first position."""
    rows, channels = maps.numel() // maps.shape[1], maps.shape[1]
    programs, (tile, parts) = MOMENTS.grid(rows), tiles(channels)
    sums = torch.empty(programs, 2, channels, device=maps.device, dtype=wide(maps.dtype))
    batches, track = pointers(running)[2], tracking(running)[0]
    _moments[(programs, parts)](
        maps, sums, batches, rows, channels, MOMENTS.block, tile, track, index(rows), TYPES[sums.dtype],
        **MOMENTS.options,
    )  # fmt: skip
    return settle(sums, maps, weight, bias, offset, eps, rows, running)


def room(maps: Tensor, pool: bool) -> Tensor:
    """Where maps go that may be pooled, with nothing in it yet."""
    batch, channels, height, width = maps.shape
    shape = (batch, channels, height // 2, width // 2) if pool else maps.shape
    return torch.empty(shape, device=maps.device, dtype=maps.dtype, memory_format=torch.channels_last)


def apply(maps: Tensor, norm: Norm, pool: bool, relu: bool, leak: float = 0.0) -> Tensor:
    """Maps normalised, pooled and rectified, but for a share of what is below 0."""
    batch, channels, height, width = maps.shape
    result = room(maps, pool)
    high, across = result.shape[-2:]
    cells = batch * high * across
    launch, (tile, parts) = APPLY if pool else APPLY_FLAT, tiles(channels)
    *tensors, eps = norm_pointers(norm)
    _apply[(launch.grid(cells), parts)](
        maps, result, *tensors, cells, channels, height, width, high, across, launch.block, tile, pool, relu, leak,
        index(batch * height * width), TYPES[wide(maps.dtype)], eps, **launch.options,
    )  # fmt: skip
    return result


def backward(
    maps: Tensor, result: Tensor, gradient: Tensor, values: Tensor, weight: Tensor, bias: Tensor, pool: bool, relu: bool,
    leak: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the maps, of batch norm's weight and bias, and, 0, of the bias of the convolution before."""
    batch, channels, height, width = maps.shape
    high, across = gradient.shape[-2:]
    cells, rows = batch * high * across, batch * height * width
    programs = REDUCE.grid(cells)
    sums = torch.empty(programs, 2, channels, device=maps.device, dtype=values.dtype)
    (tile, parts), kind = tiles(channels), TYPES[values.dtype]
    _reduce[(programs, parts)](
        result, gradient, sums, weight, bias, cells, channels, REDUCE.block, tile, relu, leak, ROUGH, TINY, index(rows), kind,
        **REDUCE.options,
    )  # fmt: skip
    _reduce_rough[(programs, parts)](
        maps, gradient, sums, values, weight, bias, cells, channels, height, width, high, across, REDUCE_ROUGH.block, tile,
        pool, relu, leak, ROUGH, TINY, index(rows), kind, **REDUCE_ROUGH.options,
    )  # fmt: skip
    shares, (d_bias, d_weight, nothing) = totals(sums, rows, weight.dtype)
    d_maps = torch.empty_like(maps)
    step = 2 if pool else 1
    down, along = triton.cdiv(height, step), triton.cdiv(width, step)  # an odd last row or column is a cell by itself
    launch = SPREAD if pool else SPREAD_FLAT
    _spread[(launch.grid(batch * down * along), parts)](
        maps, gradient, d_maps, shares, values, batch * down * along, channels, height, width, high, across, down, along,
        launch.block, tile, pool, relu, leak, index(rows), kind, **launch.options,
    )  # fmt: skip
    return d_maps, d_weight, d_bias, nothing


@triton.jit
def _moments(
    maps, sums, batches, rows, channels, BLOCK: tl.constexpr, CHANNELS: tl.constexpr, TRACK: tl.constexpr,
    INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if TRACK:
        count_batch(batches)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    inside = c < channels
    start = tl.load(maps + c, inside, 0.0).to(WIDE)  # (1, C)
    first = tl.zeros((BLOCK, CHANNELS), WIDE)
    second = tl.zeros((BLOCK, CHANNELS), WIDE)
    for tile in range(program, tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.full((), BLOCK, INDEX) * tile + tl.arange(0, BLOCK)[:, None]
        here = (row < rows) & inside
        value = tl.load(maps + row.to(tl.int64) * channels + c, here, 0.0).to(WIDE) - start
        value = tl.where(here, value, 0.0)
        first += value
        second += value * value
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    place = sums + program * 2 * channels + column
    tl.store(place, tl.sum(first, 0), column < channels)
    tl.store(place + channels, tl.sum(second, 0), column < channels)


@triton.jit
def cell_at(cell, down, across, height, width, channels, POOL: tl.constexpr):
    """Offset of a cell's first position, and its image, row and column of cells."""
    image = cell // (down * across)
    rest = cell % (down * across)
    y = rest // across
    x = rest % across
    step: tl.constexpr = 2 if POOL else 1
    return ((image * height + step * y) * width + step * x).to(tl.int64) * channels, image, y, x


@triton.jit
def _apply(
    maps, result, scale, shift, mean, var, offset, cells, channels, height, width, high, wide, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, POOL: tl.constexpr, RELU: tl.constexpr, LEAK: tl.constexpr, INDEX: tl.constexpr,
    WIDE: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    cell = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)[:, None]
    here = (cell < cells) & (c < channels)
    s, t = scale_and_shift(scale, shift, mean, var, offset, c, channels, EPS, WIDE)
    start, _image, _y, _x = cell_at(cell, high, wide, height, width, channels, POOL)
    place = maps + start + c
    z = tl.load(place, here, 0.0).to(WIDE) * s + t
    if POOL:
        z = higher(z, tl.load(place + channels, here, 0.0).to(WIDE) * s + t)
        z = higher(z, tl.load(place + width * channels, here, 0.0).to(WIDE) * s + t)
        z = higher(z, tl.load(place + (width + 1) * channels, here, 0.0).to(WIDE) * s + t)
    if RELU:
        z = leaky(z, LEAK)
    tl.store(result + cell.to(tl.int64) * channels + c, z, here)


@triton.jit
def _rough(weight, bias, c, channels, ROUGH: tl.constexpr, TINY: tl.constexpr, WIDE: tl.constexpr):
    """Weight and bias of the channels c, and whether the weight is next to nothing, so that results tell too little of x̂."""
    w = tl.load(weight + c, c < channels, 1.0).to(WIDE)
    b = tl.load(bias + c, c < channels, 0.0).to(WIDE)
    return w, b, (c < channels) & ((tl.abs(w) < ROUGH * tl.abs(b)) | (tl.abs(w) < TINY))


@triton.jit
def _reduce(
    result, gradient, sums, weight, bias, cells, channels, BLOCK: tl.constexpr, CHANNELS: tl.constexpr, RELU: tl.constexpr,
    LEAK: tl.constexpr, ROUGH: tl.constexpr, TINY: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient d that passed pooling and ReLU, and of d times the normalised value x̂ it passed to.

    Where it passed the result is weight·x̂ + bias, or LEAK times that, so the maps are not read.
    """
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    known = c < channels
    w, b, rough = _rough(weight, bias, c, channels, ROUGH, TINY, WIDE)
    slope = 1 / tl.where(rough, 1.0, w)
    first = tl.zeros((BLOCK, CHANNELS), WIDE)
    second = tl.zeros((BLOCK, CHANNELS), WIDE)
    for tile in range(tl.program_id(0), tl.cdiv(cells, BLOCK), tl.num_programs(0)):
        cell = tl.full((), BLOCK, INDEX) * tile + tl.arange(0, BLOCK)[:, None]
        here = (cell < cells) & known
        place = cell.to(tl.int64) * channels + c
        z = tl.load(result + place, here, 0.0).to(WIDE)
        g = tl.load(gradient + place, here, 0.0).to(WIDE)
        if RELU:
            g = through(g, z, LEAK)
            if LEAK > 0:
                z = tl.where(z > 0, z, z / LEAK)
        first += g
        second += g * ((z - b) * slope)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sum_at = sums + tl.program_id(0) * 2 * channels + column
    tl.store(sum_at, tl.sum(first, 0), column < channels)
    tl.store(sum_at + channels, tl.sum(second, 0), column < channels)


@triton.jit
def _reduce_rough(
    maps, gradient, sums, values, weight, bias, cells, channels, height, width, high, wide, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, POOL: tl.constexpr, RELU: tl.constexpr, LEAK: tl.constexpr, ROUGH: tl.constexpr,
    TINY: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The second sum again, from the maps, for the channels whose weight is next to nothing; usually there are none."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    known = c < channels
    _w, _b, rough = _rough(weight, bias, c, channels, ROUGH, TINY, WIDE)
    if tl.max(tl.max(rough.to(tl.int32), 1), 0) > 0:
        m = tl.load(values + c, known, 0.0).to(WIDE)
        i = tl.load(values + 2 * channels + c, known, 0.0).to(WIDE)
        s = tl.load(values + 3 * channels + c, known, 0.0).to(WIDE)
        t = tl.load(values + 4 * channels + c, known, 0.0).to(WIDE)
        second = tl.zeros((BLOCK, CHANNELS), WIDE)
        for tile in range(tl.program_id(0), tl.cdiv(cells, BLOCK), tl.num_programs(0)):
            cell = tl.full((), BLOCK, INDEX) * tile + tl.arange(0, BLOCK)[:, None]
            here = (cell < cells) & rough
            start, _image, _y, _x = cell_at(cell, high, wide, height, width, channels, POOL)
            near = maps + start + c
            value = tl.load(near, here, 0.0).to(WIDE)
            top = value * s + t
            if POOL:
                other = tl.load(near + channels, here, 0.0).to(WIDE)
                value = tl.where(other * s + t > top, other, value)
                top = tl.maximum(top, other * s + t)
                other = tl.load(near + width * channels, here, 0.0).to(WIDE)
                value = tl.where(other * s + t > top, other, value)
                top = tl.maximum(top, other * s + t)
                other = tl.load(near + (width + 1) * channels, here, 0.0).to(WIDE)
                value = tl.where(other * s + t > top, other, value)
                top = tl.maximum(top, other * s + t)
            g = tl.load(gradient + cell.to(tl.int64) * channels + c, here, 0.0).to(WIDE)
            if RELU:
                g = through(g, top, LEAK)
            second += g * (value - m) * i
        column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        _weight, _bias, these = _rough(weight, bias, column, channels, ROUGH, TINY, WIDE)
        tl.store(sums + (tl.program_id(0) * 2 + 1) * channels + column, tl.sum(second, 0), these)


@triton.jit
def _spread(
    maps, gradient, result, shares, values, cells, channels, height, width, high, wide, down, across, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr, POOL: tl.constexpr, RELU: tl.constexpr, LEAK: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """scale·(d − mean of d − x̂·mean of d·x̂) at every position; d is the gradient where it passed, else 0."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    known = c < channels
    m = tl.load(values + c, known, 0.0).to(WIDE)
    i = tl.load(values + 2 * channels + c, known, 0.0).to(WIDE)
    s = tl.load(values + 3 * channels + c, known, 0.0).to(WIDE)
    t = tl.load(values + 4 * channels + c, known, 0.0).to(WIDE)
    first = tl.load(shares + c, known, 0.0).to(WIDE)
    second = tl.load(shares + channels + c, known, 0.0).to(WIDE) * i
    cell = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)[:, None]
    here = (cell < cells) & known
    start, image, y, x = cell_at(cell, down, across, height, width, channels, POOL)
    pooled = here & (y < high) & (x < wide)
    g = tl.load(gradient + ((image * high + y) * wide + x).to(tl.int64) * channels + c, pooled, 0.0).to(WIDE)
    place = maps + start + c
    out = result + start + c
    value = tl.load(place, here, 0.0).to(WIDE)
    z = value * s + t
    if POOL:
        right = here & (2 * x + 1 < width)
        below = here & (2 * y + 1 < height)
        value1 = tl.load(place + channels, right, 0.0).to(WIDE)
        value2 = tl.load(place + width * channels, below, 0.0).to(WIDE)
        value3 = tl.load(place + (width + 1) * channels, right & below, 0.0).to(WIDE)
        z1 = value1 * s + t
        z2 = value2 * s + t
        z3 = value3 * s + t
        top = tl.maximum(tl.maximum(z, z1), tl.maximum(z2, z3))
        if RELU:
            g = through(g, top, LEAK)
        w = z == top  # the first of those that are highest wins, as in PyTorch
        w1 = (z1 == top) & (z < top)
        w2 = (z2 == top) & (z < top) & (z1 < top)
        w3 = (z < top) & (z1 < top) & (z2 < top)
        tl.store(out, s * (tl.where(w, g, 0.0) - first - (value - m) * second), here)
        tl.store(out + channels, s * (tl.where(w1, g, 0.0) - first - (value1 - m) * second), right)
        tl.store(out + width * channels, s * (tl.where(w2, g, 0.0) - first - (value2 - m) * second), below)
        tl.store(out + (width + 1) * channels, s * (tl.where(w3, g, 0.0) - first - (value3 - m) * second), right & below)
    else:
        if RELU:
            g = through(g, z, LEAK)
        tl.store(out, s * (g - first - (value - m) * second), here)
