"""The first block in Triton: a convolution is a matrix product with patches that are gathered on the way.

Kernels go over cells, the four positions that are pooled together. The 4×4 patch of a cell holds the 3×3 patches of its four
positions; number n of the four lies in row n // 2 and column n % 2. The numbers of a patch go by channel, row and column. A
program stays for many tiles of cells, so that weights are loaded and sums are stored once.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sosn.kernel.running import Running
from sosn.kernel.triton_launch import TYPES, Launch, power, wide
from sosn.kernel.triton_maximum import higher
from sosn.kernel.triton_statistics import FILTERS, count_batch, pointers, store_values, tracking

CHANNELS = 64  # filters that one program takes at most
GRAM = Launch(128, 8, 1, 528)
FORWARD, FORWARD_PAIRS = Launch(64, 8, 1, 1056), Launch(32, 4, 1, 1056, 128)
COLLECT, COLLECT_PAIRS = Launch(32, 4, 1, 1056), Launch(64, 4, 3, 1056)
FOLD = Launch(256, 4)
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


def statistics(
    sides: Sequence[Tensor], weight: Tensor, offset: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, layout: Layout,
    eps: float, running: Running | None,
) -> Moments:  # fmt: skip
    """Statistics of the convolution's output over all positions, of all pairs where there are two sides (E, M, c, H, W)."""
    channels, height, width = sides[-1].shape[2:]
    kind, precision = wide(layout.precision), layout.precision
    down, across = layout.positions(height, width)
    even = down % 2 == 0 and across % 2 == 0  # cells cover all positions, and their patches hold those of positions
    patch, step = (4, 2) if even else (3, 1)
    length = max(16, power(channels * patch * patch + 1))
    jobs = [(side, side, precision) for side in (side.flatten(0, 1) for side in sides)]
    means = torch.empty(0, device=weight.device, dtype=kind)
    if len(sides) == 2:
        means = torch.stack([side.to(precision).mean(1, dtype=kind) for side in sides])
        jobs.append((means[0], means[1], kind))
    area = (down // step) * (across // step)
    programs = GRAM.grid(max(len(left) for left, _, _ in jobs) * area)
    grams = torch.empty(len(jobs), programs, length, length, device=weight.device, dtype=kind)
    for number, (left, right, factor) in enumerate(jobs):
        _gram[(programs,)](
            left, right, grams[number], pointers(running)[2], len(left) * area, across // step, area, height, width,
            GRAM.block, channels, patch, step, length, layout.padding, left is right, running is not None and number == 0,
            TYPES[factor], TYPES[kind], **GRAM.options,
        )  # fmt: skip
    filters, numbers = weight.shape[0], len(sides) * 9 * channels
    values = torch.empty(5, filters, device=weight.device, dtype=kind)
    products = torch.empty(numbers, filters, device=weight.device, dtype=torch.float64)
    averages = torch.empty(numbers, device=weight.device, dtype=torch.float64)
    _settle[(triton.cdiv(filters, FILTERS),)](
        grams.sum(1, dtype=torch.float64), weight, offset, norm_weight, norm_bias, values, products, averages,
        *pointers(running), math.prod(side.shape[1] for side in sides) * sides[0].shape[0] * down * across, filters,
        *weight.stride(), length, channels, layout.group, len(sides), patch, power(9 * channels), FILTERS, eps,
        *tracking(running), TYPES[precision],
    )  # fmt: skip
    return Moments(values, products, averages, means)


def forward(
    sides: Sequence[Tensor], weight: Tensor, scale: Tensor, shift: Tensor, layout: Layout, relu: bool
) -> tuple[Tensor, Tensor]:
    """relu(pool(scale·x + shift)), (E, Q, C, h, w) or (E, Q, L, C, h, w), and which of four it came from; 4 where ReLU is 0."""
    support, query = sides[0], sides[-1]
    episodes, queries, channels, height, width = query.shape
    ways = [support.shape[1]] if len(sides) == 2 else []
    high, across = layout.pooled(height, width)
    filters, rows = weight.shape[0], episodes * queries * high * across
    shape = (episodes, queries, *ways, high, across, filters)
    result = torch.empty(shape, device=query.device, dtype=layout.precision)
    winners = torch.empty(shape, device=query.device, dtype=torch.int8)
    block, launch = _filters(filters), FORWARD_PAIRS if ways else FORWARD
    _forward[(launch.grid(rows), triton.cdiv(filters, block))](
        support, query, result, winners, weight, scale, shift, rows, *(ways or [1]), queries, filters, across, high * across,
        height, width, *weight.stride(), launch.block, block, channels, layout.group, max(16, power(16 * channels)),
        layout.padding, len(sides) == 2, relu, TYPES[layout.precision], TYPES[wide(layout.precision)], **launch.options,
    )  # fmt: skip
    return result.movedim(-1, -3), winners


def backward(
    sides: Sequence[Tensor], weight: Tensor, winners: Tensor, moments: Moments, gradient: Tensor, needed: Sequence[bool],
    layout: Layout,
) -> tuple[list[Tensor | None], Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the sides, where needed, the convolution's weight, batch norm's weight and bias, and the other bias, 0."""
    gradient = gradient.movedim(-3, -1).contiguous()
    channels, height, width = sides[0].shape[2:]
    filters, kind, scale = weight.shape[0], wide(layout.precision), moments.values[3]
    totals, columns = [], []
    for number, (side, wanted) in enumerate(zip(sides, needed, strict=True)):
        partners = sides[1 - number].shape[1] if len(sides) == 2 else 1
        total, column = _collected(side, partners, weight, winners, scale, gradient, number, len(sides), wanted, layout)
        totals.append(total)
        columns.append(column)
    d_weight, d_norm = torch.empty_like(weight), torch.empty(3, filters, device=weight.device, dtype=scale.dtype)
    factors = torch.empty(2, filters, device=weight.device, dtype=torch.float64)
    down, across = layout.positions(height, width)
    count = winners.numel() // (winners.shape[-3] * winners.shape[-2] * filters) * down * across
    _finish[(triton.cdiv(filters, FILTERS),)](
        torch.stack(totals), weight, moments.values, moments.products, moments.averages, d_weight, d_norm, factors, count,
        filters, *weight.stride(), *d_weight.stride(), totals[0].shape[1], channels, layout.group, len(sides),
        power(9 * channels), FILTERS, TYPES[layout.precision],
    )  # fmt: skip
    numbers = len(sides) * 9 * channels
    mix = torch.empty(numbers, numbers + 1, device=weight.device, dtype=kind)
    if any(needed):
        _mix[(numbers,)](
            weight, factors, mix, filters, *weight.stride(), channels, layout.group, len(sides), power(numbers), FILTERS,
            TYPES[layout.precision],
        )  # fmt: skip
    inputs = [
        None if column is None else _input(sides, column, n, mix, moments.means, layout) for n, column in enumerate(columns)
    ]
    return inputs, d_weight, d_norm[1], d_norm[0], d_norm[2]


def _collected(
    side: Tensor, partners: int, weight: Tensor, winners: Tensor, scale: Tensor, gradient: Tensor, number: int, sides: int,
    wanted: bool, layout: Layout,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Sums over one side that Σ d·p and Σ d are made of, and the gradients of its cells' patches as far as they come from d.

    The sums (4, K, C) are of d that passed to each of four positions, times the 4×4 patch and the 1 that follows it.
    """
    episodes, members, channels, height, width = side.shape
    high, across = layout.pooled(height, width)
    filters, kind, rows = weight.shape[0], wide(layout.precision), episodes * members * high * across
    launch = COLLECT_PAIRS if sides == 2 else COLLECT
    block, length, programs = _filters(filters), max(16, power(16 * channels + 1)), launch.grid(rows)
    parts = int(triton.cdiv(filters, block))
    sums = torch.empty(programs, 4, length, filters, device=side.device, dtype=kind)
    shape = (parts, episodes * members, 16 * channels, high, across)
    column = torch.empty(shape, device=side.device, dtype=kind) if wanted else None
    _collect[(programs, parts)](
        gradient, winners, side, sums, column, weight, scale, rows, partners, members, filters, across, high * across, height,
        width, *weight.stride(), launch.block, block, channels, layout.group, number, sides, length,
        max(16, power(16 * channels)), layout.padding, wanted, launch.stages, TYPES[layout.precision], TYPES[kind],
        **launch.options,
    )  # fmt: skip
    return sums.sum(0, dtype=torch.float64), column


def _input(sides: Sequence[Tensor], column: Tensor, number: int, mix: Tensor, means: Tensor, layout: Layout) -> Tensor:
    """Gradient of a side: what the columns hold, less batch norm's dense terms, which are linear in the patches."""
    side, numbers = sides[number], 9 * sides[number].shape[2]
    episodes, members, channels, height, width = side.shape
    kind, partners, share = TYPES[mix.dtype], 1, means
    if len(sides) == 2:  # what the partners' mean map adds to the dense terms is the same for all maps of an episode
        partners, share = sides[1 - number].shape[1], torch.empty_like(means[0])
        pixels = episodes * height * width
        _fold[(FOLD.grid(pixels), channels)](
            means[1 - number], share, share, share, mix[number * numbers :, (1 - number) * numbers :], mix.stride(0), 0, 1, 1,
            1, pixels, height, width, *layout.pooled(height, width), FOLD.block, channels, layout.padding, False, False, kind,
            kind, **FOLD.options,
        )  # fmt: skip
    result = torch.empty_like(side)
    pixels = episodes * members * height * width
    _fold[(FOLD.grid(pixels), channels)](
        side, column, share, result, mix[number * numbers :, number * numbers :], mix.stride(0),
        (len(sides) - number) * numbers, members, partners, column.shape[0], pixels, height, width,
        *layout.pooled(height, width), FOLD.block, channels, layout.padding, True, len(sides) == 2, TYPES[layout.precision],
        kind, **FOLD.options,
    )  # fmt: skip
    return result


def _filters(filters: int) -> int:
    return min(CHANNELS, max(16, power(filters)))


@triton.jit
def _place(row, area, wide):
    """Image, row and column of a cell, or of a position, that are numbered through all images."""
    return row // area, row % area // wide, row % area % wide


@triton.jit
def _patches(
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
def _weights(
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
def _scaled(
    weight, by, o, k, side, filters, step_o, step_c, step_y, step_x, C: tl.constexpr, GROUP: tl.constexpr,
    SIDES: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Weights for the numbers k of a 4×4 patch, times a number for each filter."""
    w = _weights(weight, o, k, side, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 4, Y, X, TYPE)
    return (w.to(tl.float32 if tl.float64 != TYPE else TYPE) * by).to(TYPE)


@triton.jit
def _dot(left, right, start, WIDE: tl.constexpr):
    """start + left·right; Triton's interpreter multiplies no bfloat16."""
    if _INTERPRETED:
        left, right = left.to(WIDE), right.to(WIDE)
    return tl.dot(left, right, start, input_precision="tf32x3", out_dtype=WIDE)


@triton.jit
def _gram(
    left, right, grams, batches, rows, wide, area, height, width, BLOCK: tl.constexpr, C: tl.constexpr, PATCH: tl.constexpr,
    STEP: tl.constexpr, K: tl.constexpr, PADDING: tl.constexpr, SAME: tl.constexpr, TRACK: tl.constexpr,
    TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Σ p pᵀ over the patches of a program, a row and a column for the 1 that follows a patch included."""
    if TRACK:
        count_batch(batches)
    total = tl.zeros((K, K), WIDE)
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tile * BLOCK + tl.arange(0, BLOCK)
        image, y, x = _place(row, area, wide)
        y, x = STEP * y - PADDING, STEP * x - PADDING
        one = _patches(left, image, y, x, row < rows, height, width, C, PATCH, K, True, PADDING, TYPE)
        other = one
        if not SAME:
            other = _patches(right, image, y, x, row < rows, height, width, C, PATCH, K, True, PADDING, TYPE)
        total += _dot(one, tl.trans(other), tl.zeros((K, K), WIDE), WIDE)  # a sum of sums keeps more digits
    place = tl.arange(0, K)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(grams + tl.program_id(0) * K * K + place, total)


@triton.jit
def _within(k, Y: tl.constexpr, X: tl.constexpr, C: tl.constexpr):
    """Where number k of a 3×3 patch, or the 1 after it, stands in the 4×4 patch that holds it at (Y, X)."""
    return tl.where(k == 9 * C, 16 * C, k // 9 * 16 + (k // 3 % 3 + Y) * 4 + k % 3 + X)


@triton.jit
def _entry(gram, i, j, C: tl.constexpr, PATCH: tl.constexpr, K: tl.constexpr):
    """Entry i, j of Σ p pᵀ over all positions."""
    i = tl.minimum(i, 9 * C)
    j = tl.minimum(j, 9 * C)
    if PATCH == 3:
        value = tl.load(gram + i * K + j)
    else:
        value = tl.load(gram + _within(i, 0, 0, C) * K + _within(j, 0, 0, C))
        value += tl.load(gram + _within(i, 0, 1, C) * K + _within(j, 0, 1, C))
        value += tl.load(gram + _within(i, 1, 0, C) * K + _within(j, 1, 0, C))
        value += tl.load(gram + _within(i, 1, 1, C) * K + _within(j, 1, 1, C))
    return value


@triton.jit
def _settle(
    grams, weight, offset, norm_weight, norm_bias, values, products, averages, running_mean, running_var, batches, positions,
    filters, step_o, step_c, step_y, step_x, K: tl.constexpr, C: tl.constexpr, GROUP: tl.constexpr, SIDES: tl.constexpr,
    PATCH: tl.constexpr, J: tl.constexpr, FILTERS: tl.constexpr, EPS: tl.constexpr, TRACK: tl.constexpr,
    MOMENTUM: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """From Σ p pᵀ of each side, and across the sides, to all that Moments holds."""
    o = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    known = o < filters
    j = tl.arange(0, J)
    mean = tl.zeros((FILTERS,), tl.float64)
    square = tl.zeros((FILTERS,), tl.float64)
    for side in tl.static_range(SIDES):
        gram = grams + side * K * K
        count = _entry(gram, 9 * C, 9 * C, C, PATCH, K)
        own = _weights(
            weight, o[None, :], j[:, None], side, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE
        ).to(tl.float64)
        average = _entry(gram, 9 * C, j, C, PATCH, K) / count
        if tl.program_id(0) == 0:  # all programs have the same
            tl.store(averages + side * 9 * C + j, average, j < 9 * C)
        mean += tl.sum(average[:, None] * own, 0)
        if SIDES == 2:
            cross = grams + 2 * K * K
            pairs = _entry(cross, 9 * C, 9 * C, C, PATCH, K)
            other = _weights(
                weight, o[None, :], j[:, None], 1 - side, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0,
                TYPE,
            ).to(tl.float64)  # fmt: skip
        for i in range(9 * C):
            product = tl.sum(_entry(gram, i, j, C, PATCH, K)[:, None] * own, 0) / count
            if SIDES == 2:
                if side == 0:
                    product += tl.sum(_entry(cross, i, j, C, PATCH, K)[:, None] * other, 0) / pairs
                else:
                    product += tl.sum(_entry(cross, j, i, C, PATCH, K)[:, None] * other, 0) / pairs
            w = _weights(
                weight, o, tl.zeros_like(o) + i, side, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE
            )
            square += product * w.to(tl.float64)
            tl.store(products + (side * 9 * C + i) * filters + o, product, known)
    var = higher(square - mean * mean, 0.0)
    store_values(
        values, norm_weight, norm_bias, offset, running_mean, running_var, batches, o, mean, var, filters, positions, EPS,
        TRACK, MOMENTUM,
    )  # fmt: skip


@triton.jit
def _pool(upper, lower, left, right, s, t, RELU: tl.constexpr):
    """s·(the higher) + t, rectified, and which it was of four; 4 where ReLU gives 0. The first of equal ones is taken."""
    z = tl.maximum(upper, lower) * s + t
    which = tl.where(lower > upper, right, left)
    if RELU:
        which = tl.where(z > 0, which, 4)
        z = higher(z, 0.0)
    return z, which


@triton.jit
def _forward(
    support, query, result, winners, weight, scale, shift, rows, way, queries, filters, wide, area, height, width, step_o,
    step_c, step_y, step_x, BLOCK: tl.constexpr, CHANNELS: tl.constexpr, C: tl.constexpr, GROUP: tl.constexpr,
    K: tl.constexpr, PADDING: tl.constexpr, PAIRS: tl.constexpr, RELU: tl.constexpr, TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Some cells of the queries, each against all classes. A weight takes the sign of its scale, so that the highest wins."""
    sides: tl.constexpr = 2 if PAIRS else 1
    o = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    k = tl.arange(0, K)[:, None]
    s = tl.load(scale + o, o < filters, 0.0).to(WIDE)
    t = tl.load(shift + o, o < filters, 0.0).to(WIDE)
    sign = tl.where(s > 0, 1.0, tl.where(s < 0, -1.0, 0.0))
    s = tl.abs(s)
    b0 = _scaled(weight, sign, o, k, sides - 1, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 0, 0, TYPE)
    b1 = _scaled(weight, sign, o, k, sides - 1, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 0, 1, TYPE)
    b2 = _scaled(weight, sign, o, k, sides - 1, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 1, 0, TYPE)
    b3 = _scaled(weight, sign, o, k, sides - 1, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 1, 1, TYPE)
    if PAIRS:
        a0 = _scaled(weight, sign, o, k, 0, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 0, 0, TYPE)
        a1 = _scaled(weight, sign, o, k, 0, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 0, 1, TYPE)
        a2 = _scaled(weight, sign, o, k, 0, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 1, 0, TYPE)
        a3 = _scaled(weight, sign, o, k, 0, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 1, 1, TYPE)
    nothing = tl.zeros((BLOCK, CHANNELS), WIDE)
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tile * BLOCK + tl.arange(0, BLOCK)
        image, y, x = _place(row, area, wide)
        y, x = 2 * y - PADDING, 2 * x - PADDING
        own = tl.trans(_patches(query, image, y, x, row < rows, height, width, C, 4, K, False, PADDING, TYPE))
        line = tile * BLOCK + tl.arange(0, BLOCK)[:, None]
        here = (line < rows) & (o < filters)
        if PAIRS:  # the query's part is computed for every class anew: it would take the registers
            start = (line // area * way * area + line % area).to(tl.int64) * filters + o
            for member in range(way):
                of = image // queries * way + member
                other = tl.trans(_patches(support, of, y, x, row < rows, height, width, C, 4, K, False, PADDING, TYPE))
                x0 = _dot(own, b0, _dot(other, a0, nothing, WIDE), WIDE)
                x1 = _dot(own, b1, _dot(other, a1, nothing, WIDE), WIDE)
                upper, left = tl.maximum(x0, x1), tl.where(x1 > x0, 1, 0)
                x0 = _dot(own, b2, _dot(other, a2, nothing, WIDE), WIDE)
                x1 = _dot(own, b3, _dot(other, a3, nothing, WIDE), WIDE)
                z, which = _pool(upper, tl.maximum(x0, x1), left, tl.where(x1 > x0, 3, 2), s, t, RELU)
                place = start + (member * area).to(tl.int64) * filters
                tl.store(result + place, z.to(TYPE), here)
                tl.store(winners + place, which.to(tl.int8), here)
        else:
            x0 = _dot(own, b0, nothing, WIDE)
            x1 = _dot(own, b1, nothing, WIDE)
            upper, left = tl.maximum(x0, x1), tl.where(x1 > x0, 1, 0)
            x0 = _dot(own, b2, nothing, WIDE)
            x1 = _dot(own, b3, nothing, WIDE)
            z, which = _pool(upper, tl.maximum(x0, x1), left, tl.where(x1 > x0, 3, 2), s, t, RELU)
            place = line.to(tl.int64) * filters + o
            tl.store(result + place, z.to(TYPE), here)
            tl.store(winners + place, which.to(tl.int8), here)


@triton.jit
def _collect(
    gradient, winners, images, sums, columns, weight, scale, rows, partners, members, filters, wide, area, height, width,
    step_o, step_c, step_y, step_x, BLOCK: tl.constexpr, CHANNELS: tl.constexpr, C: tl.constexpr, GROUP: tl.constexpr,
    SIDE: tl.constexpr, SIDES: tl.constexpr, K: tl.constexpr, WHOLE: tl.constexpr, PADDING: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr, TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Some cells of one side, with the gradient d that passed to each of their positions from all partners.

    For each of the four positions the sum, over all cells, of d times the cell's 4×4 patch and the 1 that follows it; and for
    each cell the gradient of its 4×4 patch, as far as it comes from d.
    """
    o = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    nothing = tl.zeros((K, CHANNELS), WIDE)
    total0, total1, total2, total3 = nothing, nothing, nothing, nothing
    if COLUMNS:
        k = tl.arange(0, WHOLE)[:, None]
        s = tl.load(scale + o, o < filters, 0.0).to(WIDE)
        w0 = tl.trans(_scaled(weight, s, o, k, SIDE, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 0, 0, TYPE))
        w1 = tl.trans(_scaled(weight, s, o, k, SIDE, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 0, 1, TYPE))
        w2 = tl.trans(_scaled(weight, s, o, k, SIDE, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 1, 0, TYPE))
        w3 = tl.trans(_scaled(weight, s, o, k, SIDE, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 1, 1, TYPE))
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        line = tile * BLOCK + tl.arange(0, BLOCK)[:, None]
        here = (line < rows) & (o < filters)
        if SIDES == 1:
            place = line.to(tl.int64) * filters + o
            g = tl.load(gradient + place, here, 0.0)
            which = tl.load(winners + place, here, 4)
            d0 = tl.where(which == 0, g, 0.0)
            d1 = tl.where(which == 1, g, 0.0)
            d2 = tl.where(which == 2, g, 0.0)
            d3 = tl.where(which == 3, g, 0.0)
        else:
            d0 = tl.zeros((BLOCK, CHANNELS), WIDE)
            d1 = tl.zeros((BLOCK, CHANNELS), WIDE)
            d2 = tl.zeros((BLOCK, CHANNELS), WIDE)
            d3 = tl.zeros((BLOCK, CHANNELS), WIDE)
            member = line // area
            if SIDE == 1:
                start = member * partners * area + line % area
                step = area
            else:
                start = (member // members * partners * members + member % members) * area + line % area
                step = members * area
            for partner in tl.range(0, partners, num_stages=STAGES):
                place = (start + partner * step).to(tl.int64) * filters + o
                g = tl.load(gradient + place, here, 0.0).to(WIDE)
                which = tl.load(winners + place, here, 4)
                d0 += tl.where(which == 0, g, 0.0)
                d1 += tl.where(which == 1, g, 0.0)
                d2 += tl.where(which == 2, g, 0.0)
                d3 += tl.where(which == 3, g, 0.0)
        row = tile * BLOCK + tl.arange(0, BLOCK)
        image, y, x = _place(row, area, wide)
        y, x, real = 2 * y - PADDING, 2 * x - PADDING, row < rows
        patch = _patches(images, image, y, x, real, height, width, C, 4, K, True, PADDING, TYPE)
        total0 += _dot(patch, d0.to(TYPE), nothing, WIDE)  # a sum of sums keeps more digits
        total1 += _dot(patch, d1.to(TYPE), nothing, WIDE)
        total2 += _dot(patch, d2.to(TYPE), nothing, WIDE)
        total3 += _dot(patch, d3.to(TYPE), nothing, WIDE)
        if COLUMNS:
            column = _dot(d0.to(TYPE), w0, tl.zeros((BLOCK, WHOLE), WIDE), WIDE)
            column = _dot(d1.to(TYPE), w1, column, WIDE)
            column = _dot(d2.to(TYPE), w2, column, WIDE)
            column = _dot(d3.to(TYPE), w3, column, WIDE)
            number = tl.arange(0, WHOLE)[:, None]
            part_of = tl.program_id(1).to(tl.int64) * (rows // area) + image
            place = (part_of[None, :] * (16 * C) + number) * area + (row % area)[None, :]
            tl.store(columns + place, tl.trans(column), (number < 16 * C) & real[None, :])
    place = sums + (tl.program_id(0) * (4 * K) + tl.arange(0, K)[:, None]) * filters + o
    tl.store(place, total0, o < filters)
    tl.store(place + K * filters, total1, o < filters)
    tl.store(place + 2 * K * filters, total2, o < filters)
    tl.store(place + 3 * K * filters, total3, o < filters)


@triton.jit
def _passed(sums, j, o, inside, filters, K: tl.constexpr, C: tl.constexpr):
    """Σ d times number j of the 3×3 patch that d passed to, or times the 1 after it, for filters o."""
    value = tl.load(sums + _within(j, 0, 0, C) * filters + o, inside, 0.0)
    value += tl.load(sums + (K + _within(j, 0, 1, C)) * filters + o, inside, 0.0)
    value += tl.load(sums + (2 * K + _within(j, 1, 0, C)) * filters + o, inside, 0.0)
    value += tl.load(sums + (3 * K + _within(j, 1, 1, C)) * filters + o, inside, 0.0)
    return value


@triton.jit
def _finish(
    sums, weight, values, products, averages, d_weight, d_norm, factors, count, filters, step_o, step_c, step_y, step_x,
    to_o, to_c, to_y, to_x, K: tl.constexpr, C: tl.constexpr, GROUP: tl.constexpr, SIDES: tl.constexpr, J: tl.constexpr,
    FILTERS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Gradients of the parameters, and what batch norm's dense terms are made of: scale·c₁ and scale·(c₀ − c₁·mean)."""
    o = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    known = o < filters
    mean = tl.load(values + o, known, 0.0).to(tl.float64)
    inverse = tl.load(values + 2 * filters + o, known, 0.0).to(tl.float64)
    scale = tl.load(values + 3 * filters + o, known, 0.0).to(tl.float64)
    first = _passed(sums + (SIDES - 1) * 4 * K * filters, 9 * C + tl.zeros_like(o), o, known, filters, K, C)
    second = -mean * first  # Σ d·(x − mean)
    j = tl.arange(0, J)[:, None]
    for side in tl.static_range(SIDES):
        w = _weights(weight, o[None, :], j, side, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE)
        inside = (j < 9 * C) & known[None, :]
        passed = _passed(sums + side * 4 * K * filters, j, o[None, :], inside, filters, K, C)
        second += tl.sum(w.to(tl.float64) * passed, 0)
    c0 = first / count
    c1 = inverse * inverse * second / count
    for side in tl.static_range(SIDES):
        inside = (j < 9 * C) & known[None, :]
        passed = _passed(sums + side * 4 * K * filters, j, o[None, :], inside, filters, K, C)
        product = tl.load(products + (side * 9 * C + j) * filters + o[None, :], inside, 0.0)
        average = tl.load(averages + side * 9 * C + j, j < 9 * C, 0.0)
        dense = c0[None, :] * average + c1[None, :] * (product - mean[None, :] * average)
        channel = j // 9 // GROUP * (SIDES * GROUP) + side * GROUP + j // 9 % GROUP
        place = o[None, :] * to_o + channel * to_c + j // 3 % 3 * to_y + j % 3 * to_x
        tl.store(d_weight + place, scale[None, :] * (passed - count * dense), inside)
    tl.store(d_norm + o, first, known)
    tl.store(d_norm + filters + o, second * inverse, known)
    tl.store(d_norm + 2 * filters + o, tl.zeros_like(first), known)
    tl.store(factors + o, scale * c1, known)
    tl.store(factors + filters + o, scale * (c0 - c1 * mean), known)


@triton.jit
def _mix(
    weight, factors, mix, filters, step_o, step_c, step_y, step_x, C: tl.constexpr, GROUP: tl.constexpr, SIDES: tl.constexpr,
    J: tl.constexpr, FILTERS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Rows of wᵀ diag(scale·c₁) w, with wᵀ (scale·(c₀ − c₁·mean)) after them: batch norm's dense terms, in terms of patches."""
    numbers: tl.constexpr = SIDES * 9 * C
    i = tl.program_id(0)
    j = tl.arange(0, J)
    total = tl.zeros((J,), tl.float64)
    last = tl.zeros((FILTERS,), tl.float64)
    for start in range(0, filters, FILTERS):
        o = start + tl.arange(0, FILTERS)
        of, at = tl.zeros_like(o) + i // (9 * C), tl.zeros_like(o) + i % (9 * C)
        own = _weights(weight, o, at, of, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE)
        own = own.to(tl.float64)
        of, at = (j // (9 * C))[:, None], (j % (9 * C))[:, None]
        w = _weights(weight, o[None, :], at, of, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE)
        total += tl.sum(w.to(tl.float64) * (own * tl.load(factors + o, o < filters, 0.0))[None, :], 1)
        last += own * tl.load(factors + filters + o, o < filters, 0.0)
    tl.store(mix + i * (numbers + 1) + j, total, j < numbers)
    tl.store(mix + i * (numbers + 1) + numbers, tl.sum(last, 0))


@triton.jit
def _fold(
    images, columns, share, result, mix, step_mix, bias, members, partners, parts, pixels, height, width, high, wide,
    BLOCK: tl.constexpr, C: tl.constexpr, PADDING: tl.constexpr, COLUMNS: tl.constexpr, SHARE: tl.constexpr,
    TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradient of some pixels, over the patches that they lie in: Σ columns − partners·(mix·patch + bias + share).

    Without COLUMNS just mix·patch, a share for other maps.
    """
    c = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = pixel < pixels
    image, y, x = _place(pixel, height * width, width)
    of = image.to(tl.int64) * C
    dense = tl.zeros((BLOCK,), WIDE)
    for other in range(C):
        for dy in tl.static_range(3):
            for dx in tl.static_range(3):
                down, across = y + (PADDING - dy), x + (PADDING - dx)  # the position whose patch has the pixel at (dy, dx)
                inside = (down >= 0) & (down < height + 2 * PADDING - 2) & (across >= 0) & (across < width + 2 * PADDING - 2)
                own = mix + (c * 9 + dy * 3 + dx) * step_mix
                value = tl.zeros((BLOCK,), WIDE)
                for ey in tl.static_range(3):
                    for ex in tl.static_range(3):
                        near, by = y + (ey - dy), x + (ex - dx)
                        known = here & (near >= 0) & (near < height) & (by >= 0) & (by < width)
                        number = tl.load(images + (of + other) * (height * width) + near * width + by, known, 0.0)
                        value += tl.load(own + other * 9 + ey * 3 + ex) * number.to(TYPE).to(WIDE)
                dense += tl.where(inside, value, 0.0)
    place = (of + c) * (height * width) + pixel % (height * width)
    if COLUMNS:
        for dy in tl.static_range(3):
            for dx in tl.static_range(3):
                down, across = y + (PADDING - dy), x + (PADDING - dx)
                inside = (down >= 0) & (down < height + 2 * PADDING - 2) & (across >= 0) & (across < width + 2 * PADDING - 2)
                dense += tl.where(inside, tl.load(mix + (c * 9 + dy * 3 + dx) * step_mix + bias), 0.0)
        total = tl.zeros((BLOCK,), WIDE)
        down, across = y + PADDING, x + PADDING
        for part in range(parts):
            start = (part * (pixels // (height * width)) + image).to(tl.int64) * (16 * C)
            for i in tl.static_range(2):
                for j in tl.static_range(2):
                    cy, cx = down // 2 - i, across // 2 - j  # a cell whose patch holds the pixel
                    inside = here & (cy >= 0) & (cy < high) & (cx >= 0) & (cx < wide)
                    number = c * 16 + (down - 2 * cy) * 4 + across - 2 * cx
                    total += tl.load(columns + ((start + number) * high + cy) * wide + cx, inside, 0.0)
        if SHARE:
            common = ((image // members).to(tl.int64) * C + c) * (height * width) + pixel % (height * width)
            dense += tl.load(share + common, here, 0.0)
        dense = total - partners * dense
    tl.store(result + place, dense, here)
