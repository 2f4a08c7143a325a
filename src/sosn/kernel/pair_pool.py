"""Batch norm, 2×2 max-pooling and ReLU of a_s + b_q for every pair of a class s and a query q of an episode.

The first convolution of a similarity net is linear in [support ; query], so it runs once per image, and only the pooled maps of
the pairs are written. The batch statistics over all pairs follow from the two sides: the mean is the sum of the two means, and
the variance is the sum of the two variances plus twice the cross term, which is, within an episode, the product of the means
over its classes and over its queries at each position. Batch norm's dense terms in the backward pass follow from them too.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sosn.kernel import on_triton
from sosn.kernel.batch_norm import Fixed, Norm
from sosn.util.precision import full

QUERIES = 4  # queries of an episode that the CPU processes at a time: their maps fit in the cache


def plain(
    support: Tensor, query: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None, eps: float
) -> Tensor:
    """Reference of pair_pool: (E, L, C, H, W), (E, Q, C, H, W) → (E, Q, L, C, H/2, W/2)."""
    pairs = support.unsqueeze(1) + query.unsqueeze(2)
    flat = F.batch_norm(pairs.flatten(0, 2), mean, var, weight, bias, training=mean is None, eps=eps)
    pooled: Tensor = F.relu(F.max_pool2d(flat, 2)).unflatten(0, pairs.shape[:3])
    return pooled


def pair_pool_batch(
    support: Tensor, query: Tensor, weight: Tensor, bias: Tensor, offset: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by the statistics of all pairs: (E, Q, L, C, H/2, W/2); also return their mean and (biased) variance.

    offset is the bias that the convolution before omitted; its gradient is 0.
    """
    result: tuple[Tensor, Tensor, Tensor] = _Batch.apply(support, query, weight, bias, offset, eps)
    return result


def pair_pool_fixed(support: Tensor, query: Tensor, fixed: Fixed) -> Tensor:
    """Normalise a + b by running statistics, pool and rectify; in PyTorch if a gradient is needed."""
    return _forward(_last(support), _last(query), fixed)


class _Batch(torch.autograd.Function):
    """Saves only the maps of the two sides; the backward pass recomputes the position of each maximum."""

    @staticmethod
    def forward(
        ctx: Any, support: Tensor, query: Tensor, weight: Tensor, bias: Tensor, offset: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        support, query = _last(support), _last(query)
        means, mean, var = _moments(support, query)
        inverse = (var + eps).rsqrt()
        scale = weight * inverse
        shift = bias - mean * scale
        ctx.save_for_backward(support, query, *means, mean, inverse, scale, shift)
        ctx.mark_non_differentiable(mean, var)
        ctx.offset = offset is not None
        return _forward(support, query, (scale, shift)), mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        support, query, support_mean, query_mean, mean, inverse, scale, shift = ctx.saved_tensors
        d_support, d_query, first, second = _backward(support, query, gradient, scale, shift)
        way, queries = support.shape[1], query.shape[1]
        second = (second - mean * first) * inverse  # Σ d·x̂, from Σ d·x
        count = query.numel() // query.shape[2] * way
        shares = torch.stack((first, second * inverse)) / count
        d_support = _spread(d_support, support, query_mean, queries, mean, scale, shares)
        d_query = _spread(d_query, query, support_mean, way, mean, scale, shares)
        offset = torch.zeros_like(first) if ctx.offset else None
        return d_support, d_query, second.to(scale.dtype), first.to(scale.dtype), offset, None


def _last(maps: Tensor) -> Tensor:
    """Store (E, M, C, H, W) with the channels last in memory, as a view of (E, M, H, W, C)."""
    return maps.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _moments(support: Tensor, query: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Return the means over classes and over queries, (E, C, H, W), and mean and variance (C,) of all pairs."""
    sides = [_side_moments(side) for side in (support, query)]
    (support_mean, support_var), (query_mean, query_var) = sides
    centres = [part.mean((0, 2, 3)) for part in (support_mean, query_mean)]
    apart = [part - centre[:, None, None] for part, centre in zip((support_mean, query_mean), centres, strict=True)]
    # The variance of each side at a position, plus the variance of the summed means of both sides.
    var = (support_var + query_var + (apart[0] + apart[1]).square()).mean((0, 2, 3))
    return (support_mean, query_mean), centres[0] + centres[1], var


def _side_moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over the maps at each position, (E, M, C, H, W) → (E, C, H, W) twice, in full precision."""
    if on_triton(maps):
        from sosn.kernel.triton.pair_pool import side_moments

        return side_moments(maps)
    rows = _memory_order(full(maps))
    mean = rows.mean(1)
    var = (rows - mean.unsqueeze(1)).square_().mean(1)
    return mean.movedim(-1, -3), var.movedim(-1, -3)


def _forward(support: Tensor, query: Tensor, norm: Norm) -> Tensor:
    if on_triton(support) and not torch.is_grad_enabled():
        from sosn.kernel.triton.pair_pool import forward

        return forward(support, query, norm)
    scale, shift = norm.affine() if isinstance(norm, Fixed) else norm
    episodes, way, channels, height, width = support.shape
    result = support.new_empty(episodes, query.shape[1], way, height // 2, width // 2, channels).movedim(-1, -3)
    for rows, maps in _pairs(support, query, scale, shift):
        pooled = F.max_pool2d(maps.flatten(0, 2), 2).relu_()
        result[:, rows] = pooled.unflatten(0, maps.shape[:3])
    return result


def _pairs(support: Tensor, query: Tensor, scale: Tensor, shift: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield normalised maps (E, q, L, C, H, W) for a few queries at a time."""
    left = support * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
    right = query * scale.view(-1, 1, 1)
    for first in range(0, query.shape[1], QUERIES):
        rows = slice(first, first + QUERIES)
        yield rows, left.unsqueeze(1) + right[:, rows].unsqueeze(2)


def _backward(
    support: Tensor, query: Tensor, gradient: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients after pooling and ReLU, summed over the partners of each map, and Σ d and Σ d·x over all pairs (C,)."""
    if on_triton(support):
        from sosn.kernel.triton.pair_pool import backward

        return backward(support, query, gradient.movedim(-3, -1).contiguous(), scale, shift)
    support, query, gradient = full(support), full(query), full(gradient)
    d_support, d_query = torch.zeros_like(support), torch.empty_like(query)
    for rows, maps in _pairs(support, query, scale, shift):
        flat = maps.flatten(0, 2)
        pooled, winners = F.max_pool2d(flat, 2, return_indices=True)
        passed = torch.where(pooled > 0, gradient[:, rows].flatten(0, 2), 0.0).contiguous(memory_format=torch.channels_last)
        spread = torch.ops.aten.max_pool2d_with_indices_backward(passed, flat, [2], [2], [0], [1], False, winners)
        spread = _memory_order(spread.unflatten(0, maps.shape[:3]))
        d_support += spread.sum(1).movedim(-1, -3)
        d_query[:, rows] = spread.sum(2).movedim(-1, -3)
    total = _memory_order(d_support).flatten(0, -2).sum(0)
    products = (_memory_order(side).flatten(0, -2).sum(0) for side in (d_support * support, d_query * query))
    return d_support, d_query, total, sum(products, torch.zeros_like(total))


def _memory_order(maps: Tensor) -> Tensor:
    """View maps (…, C, H, W) in memory order, (…, H, W, C), in which sums are fastest on the CPU."""
    return maps.movedim(-3, -1)


def _spread(
    passed: Tensor, maps: Tensor, partner: Tensor, partners: int, mean: Tensor, scale: Tensor, shares: Tensor
) -> Tensor:
    """Gradient of one side: the passed gradient minus batch norm's two dense terms, summed over the partners of each map."""
    if on_triton(maps):
        from sosn.kernel.triton.pair_pool import spread

        return spread(passed, maps, partner, partners, mean, scale, shares)
    first, second, scale, mean = (value.view(-1, 1, 1) for value in (*shares, scale, mean))
    dense = first + (maps - mean + partner.unsqueeze(1)) * second
    result: Tensor = (passed - partners * dense) * scale
    return result.to(maps.dtype)
