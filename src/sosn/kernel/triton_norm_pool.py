"""norm_pool in Triton. Maps are channels-last: a row of memory is one position with all its channels."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 1024  # positions that one program of a reduction goes over
BLOCK = 32  # positions, or cells of four, at once


def moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel over all positions, from one pass: sums about the first position's values."""
    rows, channels = maps.numel() // maps.shape[1], maps.shape[1]
    programs = triton.cdiv(rows, ROWS)
    sums = torch.empty(programs, 2, channels, device=maps.device, dtype=_wide(maps.dtype))
    _moments[(programs,)](maps, sums, rows, channels, ROWS, BLOCK, _power(channels), _type(maps.dtype))
    first, second = (sums.sum(0, dtype=torch.float64) / rows).unbind()
    start = maps[0, :, 0, 0].double()
    wide = sums.dtype
    return (start + first).to(wide), (second - first.square()).clamp_min(0).to(wide)


def apply(maps: Tensor, scale: Tensor, shift: Tensor, pool: bool, relu: bool) -> Tensor:
    """scale·maps + shift, pooled and rectified."""
    batch, channels, height, width = maps.shape
    high, wide = (height // 2, width // 2) if pool else (height, width)
    result = torch.empty((batch, channels, high, wide), device=maps.device, dtype=maps.dtype, memory_format=torch.channels_last)
    cells = batch * high * wide
    grid = (triton.cdiv(cells, BLOCK),)
    _apply[grid](
        maps, result, scale, shift, cells, channels, height, width, high, wide, BLOCK, _power(channels), pool, relu,
        _type(maps.dtype),
    )  # fmt: skip
    return result


def backward(
    maps: Tensor, gradient: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, shift: Tensor, pool: bool, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the maps and of batch norm's weight and bias."""
    batch, channels, height, width = maps.shape
    high, wide = (height // 2, width // 2) if pool else (height, width)
    cells = batch * high * wide
    programs = triton.cdiv(cells, ROWS)
    sums = torch.empty(programs, 2, channels, device=maps.device, dtype=_wide(maps.dtype))
    block, kind = _power(channels), _type(maps.dtype)
    _reduce[(programs,)](
        maps, gradient, sums, scale, shift, mean, inverse, cells, channels, height, width, high, wide, ROWS, BLOCK, block,
        pool, relu, kind,
    )  # fmt: skip
    total = sums.sum(0, dtype=torch.float64)
    result = torch.empty_like(maps)
    shares = (total / (batch * height * width)).to(sums.dtype)
    step = 2 if pool else 1
    down, across = triton.cdiv(height, step), triton.cdiv(width, step)  # an odd last row or column is a cell by itself
    count = batch * down * across
    _spread[(triton.cdiv(count, BLOCK),)](
        maps, gradient, result, shares, scale, shift, mean, inverse, count, channels, height, width, high, wide, down, across,
        BLOCK, block, pool, relu, kind,
    )  # fmt: skip
    return result, total[1].to(scale.dtype), total[0].to(scale.dtype)


def _power(channels: int) -> int:
    return int(triton.next_power_of_2(channels))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _type(dtype: torch.dtype) -> Any:
    return tl.float64 if dtype == torch.float64 else tl.float32


@triton.jit
def _moments(maps, sums, rows, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr):
    program = tl.program_id(0)
    c = tl.arange(0, CHANNELS)[None, :]
    inside = c < channels
    start = tl.load(maps + c, inside, 0.0).to(WIDE)  # (1, C)
    first = tl.zeros((BLOCK, CHANNELS), WIDE)
    second = tl.zeros((BLOCK, CHANNELS), WIDE)
    for step in range(0, ROWS, BLOCK):
        row = program.to(tl.int64) * ROWS + step + tl.arange(0, BLOCK)[:, None]
        here = (row < rows) & inside
        value = tl.load(maps + row * channels + c, here, 0.0).to(WIDE) - start
        value = tl.where(here, value, 0.0)
        first += value
        second += value * value
    place = sums + program * 2 * channels + tl.arange(0, CHANNELS)
    tl.store(place, tl.sum(first, 0), tl.arange(0, CHANNELS) < channels)
    tl.store(place + channels, tl.sum(second, 0), tl.arange(0, CHANNELS) < channels)


@triton.jit
def _cell(cell, down, across, height, width, channels, POOL: tl.constexpr):
    """Offset of a cell's first position, and its image, row and column of cells."""
    image = cell // (down * across)
    rest = cell % (down * across)
    y = rest // across
    x = rest % across
    step: tl.constexpr = 2 if POOL else 1
    return ((image * height + step * y) * width + step * x) * channels, image, y, x


@triton.jit
def _apply(
    maps, result, scale, shift, cells, channels, height, width, high, wide, BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
    POOL: tl.constexpr, RELU: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, CHANNELS)[None, :]
    cell = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    here = (cell < cells) & (c < channels)
    s = tl.load(scale + c, c < channels, 0.0).to(WIDE)
    t = tl.load(shift + c, c < channels, 0.0).to(WIDE)
    start, _image, _y, _x = _cell(cell, high, wide, height, width, channels, POOL)
    place = maps + start + c
    z = tl.load(place, here, 0.0).to(WIDE) * s + t
    if POOL:
        z = tl.maximum(z, tl.load(place + channels, here, 0.0).to(WIDE) * s + t)
        z = tl.maximum(z, tl.load(place + width * channels, here, 0.0).to(WIDE) * s + t)
        z = tl.maximum(z, tl.load(place + (width + 1) * channels, here, 0.0).to(WIDE) * s + t)
    if RELU:
        z = tl.maximum(z, 0.0)
    tl.store(result + cell * channels + c, z, here)


@triton.jit
def _reduce(
    maps, gradient, sums, scale, shift, mean, inverse, cells, channels, height, width, high, wide, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr, POOL: tl.constexpr, RELU: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient that passed pooling and ReLU, and of it times the normalised value it passed to."""
    program = tl.program_id(0)
    c = tl.arange(0, CHANNELS)[None, :]
    s = tl.load(scale + c, c < channels, 0.0).to(WIDE)
    t = tl.load(shift + c, c < channels, 0.0).to(WIDE)
    m = tl.load(mean + c, c < channels, 0.0).to(WIDE)
    i = tl.load(inverse + c, c < channels, 0.0).to(WIDE)
    first = tl.zeros((BLOCK, CHANNELS), WIDE)
    second = tl.zeros((BLOCK, CHANNELS), WIDE)
    for step in range(0, ROWS, BLOCK):
        cell = program.to(tl.int64) * ROWS + step + tl.arange(0, BLOCK)[:, None]
        here = (cell < cells) & (c < channels)
        start, _image, _y, _x = _cell(cell, high, wide, height, width, channels, POOL)
        place = maps + start + c
        value = tl.load(place, here, 0.0).to(WIDE)
        z = value * s + t
        if POOL:
            other = tl.load(place + channels, here, 0.0).to(WIDE)
            value = tl.where(other * s + t > z, other, value)
            z = tl.maximum(z, other * s + t)
            other = tl.load(place + width * channels, here, 0.0).to(WIDE)
            value = tl.where(other * s + t > z, other, value)
            z = tl.maximum(z, other * s + t)
            other = tl.load(place + (width + 1) * channels, here, 0.0).to(WIDE)
            value = tl.where(other * s + t > z, other, value)
            z = tl.maximum(z, other * s + t)
        g = tl.load(gradient + cell * channels + c, here, 0.0).to(WIDE)
        if RELU:
            g = tl.where(z > 0, g, 0.0)
        first += g
        second += g * (value - m) * i
    place = sums + program * 2 * channels + tl.arange(0, CHANNELS)
    tl.store(place, tl.sum(first, 0), tl.arange(0, CHANNELS) < channels)
    tl.store(place + channels, tl.sum(second, 0), tl.arange(0, CHANNELS) < channels)


@triton.jit
def _spread(
    maps, gradient, result, shares, scale, shift, mean, inverse, cells, channels, height, width, high, wide, down, across,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr, POOL: tl.constexpr, RELU: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """scale·(d − mean of d − x̂·mean of d·x̂) at every position; d is the gradient where it passed, else 0."""
    c = tl.arange(0, CHANNELS)[None, :]
    known = c < channels
    s = tl.load(scale + c, known, 0.0).to(WIDE)
    t = tl.load(shift + c, known, 0.0).to(WIDE)
    m = tl.load(mean + c, known, 0.0).to(WIDE)
    i = tl.load(inverse + c, known, 0.0).to(WIDE)
    first = tl.load(shares + c, known, 0.0).to(WIDE)
    second = tl.load(shares + channels + c, known, 0.0).to(WIDE)
    cell = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    here = (cell < cells) & known
    start, image, y, x = _cell(cell, down, across, height, width, channels, POOL)
    pooled = here & (y < high) & (x < wide)
    g = tl.load(gradient + ((image * high + y) * wide + x) * channels + c, pooled, 0.0).to(WIDE)
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
            g = tl.where(top > 0, g, 0.0)
        w = z == top  # the first of those that are highest wins, as in PyTorch
        w1 = (z1 == top) & (z < top)
        w2 = (z2 == top) & (z < top) & (z1 < top)
        w3 = (z < top) & (z1 < top) & (z2 < top)
        tl.store(out, s * (tl.where(w, g, 0.0) - first - (value - m) * i * second), here)
        tl.store(out + channels, s * (tl.where(w1, g, 0.0) - first - (value1 - m) * i * second), right)
        tl.store(out + width * channels, s * (tl.where(w2, g, 0.0) - first - (value2 - m) * i * second), below)
        tl.store(out + (width + 1) * channels, s * (tl.where(w3, g, 0.0) - first - (value3 - m) * i * second), right & below)
    else:
        if RELU:
            g = tl.where(z > 0, g, 0.0)
        tl.store(out, s * (g - first - (value - m) * i * second), here)
