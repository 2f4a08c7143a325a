"""The first block in Triton, backwards: from the pooled gradient and which of four won to all gradients."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sosn.kernel.triton.launch import TYPES, Launch, power, wide
from sosn.kernel.triton.patches import Layout, Moments, filters_at_once, gather, locate, multiply, scaled, weights_of, within
from sosn.kernel.triton.statistics import FILTERS

COLLECT, COLLECT_PAIRS = Launch(32, 4, 1, 1056), Launch(64, 4, 3, 1056)
FOLD = Launch(256, 4)


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
    block, length, programs = filters_at_once(filters), max(16, power(16 * channels + 1)), launch.grid(rows)
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
        w0 = tl.trans(scaled(weight, s, o, k, SIDE, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 0, 0, TYPE))
        w1 = tl.trans(scaled(weight, s, o, k, SIDE, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 0, 1, TYPE))
        w2 = tl.trans(scaled(weight, s, o, k, SIDE, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 1, 0, TYPE))
        w3 = tl.trans(scaled(weight, s, o, k, SIDE, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 1, 1, TYPE))
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
        image, y, x = locate(row, area, wide)
        y, x, real = 2 * y - PADDING, 2 * x - PADDING, row < rows
        patch = gather(images, image, y, x, real, height, width, C, 4, K, True, PADDING, TYPE)
        total0 += multiply(patch, d0.to(TYPE), nothing, WIDE)  # a sum of sums keeps more digits
        total1 += multiply(patch, d1.to(TYPE), nothing, WIDE)
        total2 += multiply(patch, d2.to(TYPE), nothing, WIDE)
        total3 += multiply(patch, d3.to(TYPE), nothing, WIDE)
        if COLUMNS:
            column = multiply(d0.to(TYPE), w0, tl.zeros((BLOCK, WHOLE), WIDE), WIDE)
            column = multiply(d1.to(TYPE), w1, column, WIDE)
            column = multiply(d2.to(TYPE), w2, column, WIDE)
            column = multiply(d3.to(TYPE), w3, column, WIDE)
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
    value = tl.load(sums + within(j, 0, 0, C) * filters + o, inside, 0.0)
    value += tl.load(sums + (K + within(j, 0, 1, C)) * filters + o, inside, 0.0)
    value += tl.load(sums + (2 * K + within(j, 1, 0, C)) * filters + o, inside, 0.0)
    value += tl.load(sums + (3 * K + within(j, 1, 1, C)) * filters + o, inside, 0.0)
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
        w = weights_of(weight, o[None, :], j, side, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE)
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
        own = weights_of(weight, o, at, of, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE)
        own = own.to(tl.float64)
        of, at = (j // (9 * C))[:, None], (j % (9 * C))[:, None]
        w = weights_of(weight, o[None, :], at, of, filters, step_o, step_c, step_y, step_x, C, GROUP, SIDES, 3, 0, 0, TYPE)
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
    image, y, x = locate(pixel, height * width, width)
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
