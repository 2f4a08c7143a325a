"""Batch norm of two maps, their sum, leaky ReLU and 2×2 max-pooling: the end of a residual stage."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sosn.kernel.batch_norm import Running
from sosn.kernel.norm_pool import channels_last, check_several

Parameters = tuple[Tensor, Tensor, float]  # weight, bias and eps of a batch norm


def plain(first: Tensor, second: Tensor, norms: tuple[Parameters, Parameters], pool: bool, leak: float) -> Tensor:
    """Reference of join_pool, for maps (B, C, H, W), with batch statistics."""
    normed = (
        F.batch_norm(maps, None, None, weight, bias, training=True, eps=eps)
        for maps, (weight, bias, eps) in zip((first, second), norms, strict=True)
    )
    total = F.leaky_relu(sum(normed, torch.zeros_like(first)), leak)
    return F.max_pool2d(total, 2) if pool else total


def join_pool(
    first: Tensor,
    second: Tensor,
    norms: tuple[Parameters, Parameters],
    pool: bool,
    leak: float,
    running: tuple[Running | None, Running | None] = (None, None),
) -> Tensor:
    """Normalise each map by its batch statistics, add, rectify and pool. Running statistics are updated.

    Refuses maps with one value per channel, and maps that are too small for pooling.
    """
    from sosn.kernel.triton.norm_pool import moments

    check_several(first)
    if pool and min(first.shape[-2:]) < 2:
        raise RuntimeError(f"maps of {tuple(first.shape)} are too small to be pooled")  # as PyTorch does
    sides = [channels_last(maps) for maps in (first, second)]
    with torch.no_grad():
        values = [
            moments(maps, weight, bias, None, eps, kept)
            for maps, (weight, bias, eps), kept in zip(sides, norms, running, strict=True)
        ]
    result: Tensor = _Join.apply(*sides, *norms[0][:2], *norms[1][:2], *values, pool, leak)
    return result


class _Join(torch.autograd.Function):
    """Saves both maps; the backward pass recomputes the position of each maximum."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, weight: Tensor, _bias: Tensor, _weight: Tensor, _shift: Tensor, values: Tensor,
        others: Tensor, pool: bool, leak: float,
    ) -> Tensor:  # fmt: skip
        from sosn.kernel.triton.join_pool import apply

        ctx.save_for_backward(first, second, values, others)
        ctx.pool, ctx.leak, ctx.dtype = pool, leak, weight.dtype
        return apply(first, second, (values, others), pool, leak)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from sosn.kernel.triton.join_pool import backward

        first, second, *values = ctx.saved_tensors
        maps, (left, right) = backward(first, second, channels_last(gradient), tuple(values), ctx.dtype, ctx.pool, ctx.leak)
        return *maps, left[1], left[0], right[1], right[0], None, None, None, None
