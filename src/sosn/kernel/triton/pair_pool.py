"""pair_pool in Triton. Maps (E, M, C, H, W) are channels-last: a row of memory is one position with all its channels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sosn.kernel.batch_norm import Norm
from sosn.kernel.triton.launch import TYPES, power, wide
from sosn.kernel.triton.maximum import higher
from sosn.kernel.triton.statistics import norm_pointers, scale_and_shift

ELEMENTS = 1024  # of a map that one program of the sums over members takes
PIXELS = 16  # pooled positions of a map that one program takes


def side_moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over the members at each position, (E, M, C, H, W) → (E, C, H, W) twice."""
    episodes, members, channels, height, width = maps.shape
    length = channels * height * width
    result = torch.empty(2, episodes, height, width, channels, device=maps.device, dtype=wide(maps.dtype))
    _side_moments[(episodes, triton.cdiv(length, ELEMENTS))](
        maps, result[0], result[1], members, length, ELEMENTS, TYPES[wide(maps.dtype)]
    )
    mean, var = result.movedim(-1, -3)
    return mean, var


def forward(support: Tensor, query: Tensor, norm: Norm) -> Tensor:
    """relu(pool(norm(a + b))) of every pair: (E, L, C, H, W), (E, Q, C, H, W) → (E, Q, L, C, H/2, W/2)."""
    episodes, way, channels, height, width = support.shape
    queries, high, across = query.shape[1], height // 2, width // 2
    result = torch.empty(episodes, queries, way, high, across, channels, device=support.device, dtype=support.dtype)
    *tensors, eps = norm_pointers(norm)
    _forward[(episodes * queries, triton.cdiv(high * across, PIXELS))](
        support, query, result, *tensors, queries, way, channels, height, width, high, across, PIXELS, power(channels),
        TYPES[wide(support.dtype)], eps,
    )  # fmt: skip
    return result.movedim(-1, -3)


def backward(
    support: Tensor, query: Tensor, gradient: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients (E, Q, L, H/2, W/2, C) that passed, summed over the partners of each map, and Σ d and Σ d·x over all pairs."""
    episodes, _, channels, height, width = support.shape
    queries, high, across = query.shape[1], height // 2, width // 2
    make = torch.zeros if height % 2 or width % 2 else torch.empty  # positions that no cell has get nothing
    blocks = triton.cdiv(high * across, PIXELS)
    sums = torch.empty(2, episodes * queries * blocks, channels, device=support.device, dtype=wide(support.dtype))
    results = []
    for own, other, mine in ((support, query, False), (query, support, True)):
        members = own.shape[1]
        result = make(episodes, members, height, width, channels, device=own.device, dtype=own.dtype)
        _backward[(blocks, episodes * members)](
            own, other, gradient, result, sums[0], sums[1], scale, shift, members, other.shape[1], channels, height, width,
            high, across, PIXELS, power(channels), mine, TYPES[wide(own.dtype)],
        )  # fmt: skip
        results.append(result.movedim(-1, -3))
    total, product = sums.sum(1, dtype=torch.float64).to(sums.dtype)
    return results[0], results[1], total, product


def spread(passed: Tensor, maps: Tensor, partner: Tensor, partners: int, mean: Tensor, scale: Tensor, shares: Tensor) -> Tensor:
    """scale·(passed − partners·(share₀ + (maps − mean + partner)·share₁)), in the precision of the maps."""
    episodes, members, channels, height, width = maps.shape
    length = channels * height * width
    result = torch.empty(episodes, members, height, width, channels, device=maps.device, dtype=maps.dtype)
    _spread[(episodes * members, triton.cdiv(length, ELEMENTS))](
        passed,
        maps,
        partner,
        result,
        mean,
        scale,
        shares,
        members,
        partners,
        length,
        channels,
        ELEMENTS,
        TYPES[wide(maps.dtype)],
    )
    return result.movedim(-1, -3)


@triton.jit
def _side_moments(maps, mean, var, members, length, ELEMENTS: tl.constexpr, WIDE: tl.constexpr):
    episode = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    here = place < length
    start = tl.load(maps + episode * members * length + place, here, 0.0).to(WIDE)
    first = tl.zeros((ELEMENTS,), WIDE)
    second = tl.zeros((ELEMENTS,), WIDE)
    for member in range(1, members):
        value = tl.load(maps + (episode * members + member) * length + place, here, 0.0).to(WIDE) - start
        first += value
        second += value * value
    first = first / members
    tl.store(mean + episode * length + place, start + first, here)
    tl.store(var + episode * length + place, second / members - first * first, here)


@triton.jit
def _forward(
    support, query, result, scale, shift, mean, var, offset, queries, way, channels, height, width, high, wide,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    both = tl.program_id(0).to(tl.int64)  # episode and query
    episode = both // queries
    c = tl.arange(0, CHANNELS)[None, :]
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)[:, None]
    here = (pixel < high * wide) & (c < channels)
    s, t = scale_and_shift(scale, shift, mean, var, offset, c, channels, EPS, WIDE)
    length = height * width * channels
    first = ((2 * (pixel // wide)) * width + 2 * (pixel % wide)) * channels + c
    right = first + channels
    below = first + width * channels
    across = below + channels
    own = query + both * length
    b0 = tl.load(own + first, here, 0.0).to(WIDE)
    b1 = tl.load(own + right, here, 0.0).to(WIDE)
    b2 = tl.load(own + below, here, 0.0).to(WIDE)
    b3 = tl.load(own + across, here, 0.0).to(WIDE)
    for k in range(way):
        other = support + (episode * way + k) * length
        z = (tl.load(other + first, here, 0.0).to(WIDE) + b0) * s + t
        z = higher(z, (tl.load(other + right, here, 0.0).to(WIDE) + b1) * s + t)
        z = higher(z, (tl.load(other + below, here, 0.0).to(WIDE) + b2) * s + t)
        z = higher(z, (tl.load(other + across, here, 0.0).to(WIDE) + b3) * s + t)
        tl.store(result + (both * way + k) * high * wide * channels + pixel * channels + c, higher(z, 0.0), here)


@triton.jit
def _backward(
    own, other, gradient, result, totals, products, scale, shift, members, partners, channels, height, width, high, wide,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, QUERY: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Some pooled positions of one map, against all its partners in turn; as a query it adds up the sums over all pairs too."""
    member = tl.program_id(1).to(tl.int64)  # of all episodes
    episode = member // members
    c = tl.arange(0, CHANNELS)[None, :]
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    here = (pixel < high * wide) & (c < channels)
    s = tl.load(scale + c, c < channels, 0.0).to(WIDE)
    t = tl.load(shift + c, c < channels, 0.0).to(WIDE)
    length = height * width * channels
    first = ((2 * (pixel // wide)) * width + 2 * (pixel % wide)) * channels + c
    right = first + channels
    below = first + width * channels
    across = below + channels
    a0 = tl.load(own + member * length + first, here, 0.0).to(WIDE)
    a1 = tl.load(own + member * length + right, here, 0.0).to(WIDE)
    a2 = tl.load(own + member * length + below, here, 0.0).to(WIDE)
    a3 = tl.load(own + member * length + across, here, 0.0).to(WIDE)
    d0 = tl.zeros((PIXELS, CHANNELS), WIDE)
    d1 = tl.zeros((PIXELS, CHANNELS), WIDE)
    d2 = tl.zeros((PIXELS, CHANNELS), WIDE)
    d3 = tl.zeros((PIXELS, CHANNELS), WIDE)
    product = tl.zeros((PIXELS, CHANNELS), WIDE)
    for k in range(partners):
        partner = episode * partners + k
        place = other + partner * length
        x0 = a0 + tl.load(place + first, here, 0.0).to(WIDE)
        x1 = a1 + tl.load(place + right, here, 0.0).to(WIDE)
        x2 = a2 + tl.load(place + below, here, 0.0).to(WIDE)
        x3 = a3 + tl.load(place + across, here, 0.0).to(WIDE)
        pair = member * partners + k if QUERY else partner * members + member % members
        g = tl.load(gradient + (pair * high * wide + pixel) * channels + c, here, 0.0).to(WIDE)
        z0 = x0 * s + t
        z1 = x1 * s + t
        z2 = x2 * s + t
        z3 = x3 * s + t
        top = tl.maximum(tl.maximum(z0, z1), tl.maximum(z2, z3))
        g = tl.where(top > 0, g, 0.0)
        g0 = tl.where(z0 == top, g, 0.0)  # the first of those that are highest wins, as in PyTorch
        g1 = tl.where((z1 == top) & (z0 < top), g, 0.0)
        g2 = tl.where((z2 == top) & (z0 < top) & (z1 < top), g, 0.0)
        g3 = tl.where((z0 < top) & (z1 < top) & (z2 < top), g, 0.0)
        d0 += g0
        d1 += g1
        d2 += g2
        d3 += g3
        if QUERY:
            product += g0 * x0 + g1 * x1 + g2 * x2 + g3 * x3
    out = result + member * length
    tl.store(out + first, d0, here)
    tl.store(out + right, d1, here)
    tl.store(out + below, d2, here)
    tl.store(out + across, d3, here)
    if QUERY:
        column = tl.arange(0, CHANNELS)
        sums = (member * tl.num_programs(0) + tl.program_id(0)) * channels + column
        tl.store(totals + sums, tl.sum(d0 + d1 + d2 + d3, 0), column < channels)
        tl.store(products + sums, tl.sum(product, 0), column < channels)


@triton.jit
def _spread(
    passed, maps, partner, result, mean, scale, shares, members, partners, length, channels, ELEMENTS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    here = place < length
    c = place % channels
    m = tl.load(mean + c, here, 0.0).to(WIDE)
    s = tl.load(scale + c, here, 0.0).to(WIDE)
    first = tl.load(shares + c, here, 0.0).to(WIDE)
    second = tl.load(shares + channels + c, here, 0.0).to(WIDE)
    value = tl.load(maps + member * length + place, here, 0.0).to(WIDE)
    other = tl.load(partner + (member // members) * length + place, here, 0.0).to(WIDE)
    d = tl.load(passed + member * length + place, here, 0.0).to(WIDE)
    dense = first + (value - m + other) * second
    tl.store(result + member * length + place, (d - partners * dense) * s, here)
