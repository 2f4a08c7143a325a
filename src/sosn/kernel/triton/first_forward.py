"""The first block in Triton, forwards: batch norm's statistics from products of patches, then the pooled map."""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sosn.kernel.batch_norm import Running
from sosn.kernel.triton.launch import TYPES, Launch, power, wide
from sosn.kernel.triton.maximum import higher
from sosn.kernel.triton.patches import Layout, Moments, filters_at_once, gather, locate, multiply, scaled, weights_of, within
from sosn.kernel.triton.statistics import FILTERS, count_batch, pointers, store_values, tracking

GRAM = Launch(128, 8, 1, 528)
FORWARD, FORWARD_PAIRS = Launch(64, 8, 1, 1056), Launch(32, 4, 1, 1056, 128)


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
    block, launch = filters_at_once(filters), FORWARD_PAIRS if ways else FORWARD
    _forward[(launch.grid(rows), triton.cdiv(filters, block))](
        support, query, result, winners, weight, scale, shift, rows, *(ways or [1]), queries, filters, across, high * across,
        height, width, *weight.stride(), launch.block, block, channels, layout.group, max(16, power(16 * channels)),
        layout.padding, len(sides) == 2, relu, TYPES[layout.precision], TYPES[wide(layout.precision)], **launch.options,
    )  # fmt: skip
    return result.movedim(-1, -3), winners


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
        image, y, x = locate(row, area, wide)
        y, x = STEP * y - PADDING, STEP * x - PADDING
        one = gather(left, image, y, x, row < rows, height, width, C, PATCH, K, True, PADDING, TYPE)
        other = one
        if not SAME:
            other = gather(right, image, y, x, row < rows, height, width, C, PATCH, K, True, PADDING, TYPE)
        total += multiply(one, tl.trans(other), tl.zeros((K, K), WIDE), WIDE)  # a sum of sums keeps more digits
    place = tl.arange(0, K)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(grams + tl.program_id(0) * K * K + place, total)


@triton.jit
def _entry(gram, i, j, C: tl.constexpr, PATCH: tl.constexpr, K: tl.constexpr):
    """Entry i, j of Σ p pᵀ over all positions."""
    i = tl.minimum(i, 9 * C)
    j = tl.minimum(j, 9 * C)
    if PATCH == 3:
        value = tl.load(gram + i * K + j)
    else:
        value = tl.load(gram + within(i, 0, 0, C) * K + within(j, 0, 0, C))
        value += tl.load(gram + within(i, 0, 1, C) * K + within(j, 0, 1, C))
        value += tl.load(gram + within(i, 1, 0, C) * K + within(j, 1, 0, C))
        value += tl.load(gram + within(i, 1, 1, C) * K + within(j, 1, 1, C))
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
        own = weights_of(
            weight, o[None, :], j[:, None], side, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE
        ).to(tl.float64)
        average = _entry(gram, 9 * C, j, C, PATCH, K) / count
        if tl.program_id(0) == 0:  # all programs have the same
            tl.store(averages + side * 9 * C + j, average, j < 9 * C)
        mean += tl.sum(average[:, None] * own, 0)
        if SIDES == 2:
            cross = grams + 2 * K * K
            pairs = _entry(cross, 9 * C, 9 * C, C, PATCH, K)
            other = weights_of(
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
            w = weights_of(
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
    b0 = scaled(weight, sign, o, k, sides - 1, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 0, 0, TYPE)
    b1 = scaled(weight, sign, o, k, sides - 1, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 0, 1, TYPE)
    b2 = scaled(weight, sign, o, k, sides - 1, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 1, 0, TYPE)
    b3 = scaled(weight, sign, o, k, sides - 1, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 1, 1, TYPE)
    if PAIRS:
        a0 = scaled(weight, sign, o, k, 0, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 0, 0, TYPE)
        a1 = scaled(weight, sign, o, k, 0, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 0, 1, TYPE)
        a2 = scaled(weight, sign, o, k, 0, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 1, 0, TYPE)
        a3 = scaled(weight, sign, o, k, 0, filters, step_o, step_c, step_y, step_x, C, GROUP, sides, 1, 1, TYPE)
    nothing = tl.zeros((BLOCK, CHANNELS), WIDE)
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tile * BLOCK + tl.arange(0, BLOCK)
        image, y, x = locate(row, area, wide)
        y, x = 2 * y - PADDING, 2 * x - PADDING
        own = tl.trans(gather(query, image, y, x, row < rows, height, width, C, 4, K, False, PADDING, TYPE))
        line = tile * BLOCK + tl.arange(0, BLOCK)[:, None]
        here = (line < rows) & (o < filters)
        if PAIRS:  # the query's part is computed for every class anew: it would take the registers
            start = (line // area * way * area + line % area).to(tl.int64) * filters + o
            for member in range(way):
                of = image // queries * way + member
                other = tl.trans(gather(support, of, y, x, row < rows, height, width, C, 4, K, False, PADDING, TYPE))
                x0 = multiply(own, b0, multiply(other, a0, nothing, WIDE), WIDE)
                x1 = multiply(own, b1, multiply(other, a1, nothing, WIDE), WIDE)
                upper, left = tl.maximum(x0, x1), tl.where(x1 > x0, 1, 0)
                x0 = multiply(own, b2, multiply(other, a2, nothing, WIDE), WIDE)
                x1 = multiply(own, b3, multiply(other, a3, nothing, WIDE), WIDE)
                z, which = _pool(upper, tl.maximum(x0, x1), left, tl.where(x1 > x0, 3, 2), s, t, RELU)
                place = start + (member * area).to(tl.int64) * filters
                tl.store(result + place, z.to(TYPE), here)
                tl.store(winners + place, which.to(tl.int8), here)
        else:
            x0 = multiply(own, b0, nothing, WIDE)
            x1 = multiply(own, b1, nothing, WIDE)
            upper, left = tl.maximum(x0, x1), tl.where(x1 > x0, 1, 0)
            x0 = multiply(own, b2, nothing, WIDE)
            x1 = multiply(own, b3, nothing, WIDE)
            z, which = _pool(upper, tl.maximum(x0, x1), left, tl.where(x1 > x0, 3, 2), s, t, RELU)
            place = line.to(tl.int64) * filters + o
            tl.store(result + place, z.to(TYPE), here)
            tl.store(winners + place, which.to(tl.int8), here)
