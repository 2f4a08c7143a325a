"""Batch norm, 2×2 max-pooling and (leaky) ReLU of a map."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sosn.kernel.batch_norm import Fixed, Running


def plain(
    maps: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None, eps: float, pool: bool, relu: bool,
    leak: float = 0.0,
) -> Tensor:  # fmt: skip
    """Reference of norm_pool, for maps (B, C, H, W). mean and var are None for batch statistics.

    leak is the negative slope of the ReLU.
    """
    maps = F.batch_norm(maps, mean, var, weight, bias, training=mean is None, eps=eps)
    maps = F.max_pool2d(maps, 2) if pool else maps
    return F.leaky_relu(maps, leak) if relu else maps


def norm_pool_batch(
    maps: Tensor,
    weight: Tensor,
    bias: Tensor,
    offset: Tensor | None,
    eps: float,
    pool: bool,
    relu: bool,
    running: Running | None = None,
    leak: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by batch statistics, pool and rectify, in Triton; also return the mean and (biased) variance of the batch.

    offset is the bias that the convolution before omitted. Batch norm subtracts it again, so its gradient is 0. Running
    statistics are updated.
    """
    check_several(maps)
    result: tuple[Tensor, Tensor, Tensor] = _Batch.apply(maps, weight, bias, offset, eps, pool, relu, running, leak)
    return result


def check_several(maps: Tensor) -> None:
    """Raise ValueError for maps with one value per channel, which have no variance, as PyTorch does."""
    if maps.numel() <= maps.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {maps.shape}")


def norm_pool_fixed(maps: Tensor, fixed: Fixed, pool: bool, relu: bool, leak: float = 0.0) -> Tensor:
    """Normalise by running statistics, pool and rectify, in Triton; for evaluation, without a gradient."""
    from sosn.kernel.triton.norm_pool import apply

    return apply(channels_last(maps), fixed, pool, relu, leak)


class _Batch(torch.autograd.Function):
    """Saves the map and the result, the input of the next layer; the backward pass recomputes the position of each maximum."""

    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor, offset: Tensor | None, eps: float, pool: bool, relu: bool,
        running: Running | None, leak: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        from sosn.kernel.triton.norm_pool import apply, moments

        maps = channels_last(maps)
        values = moments(maps, weight, bias, offset, eps, running)
        mean, var, _, scale, shift = values
        result = apply(maps, (scale, shift), pool, relu, leak)
        ctx.save_for_backward(maps, result, values, weight, bias)
        ctx.pool, ctx.relu, ctx.leak, ctx.offset = pool, relu, leak, offset is not None
        ctx.mark_non_differentiable(mean, var)
        return result, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        from sosn.kernel.triton.norm_pool import backward

        maps, result, values, weight, bias = ctx.saved_tensors
        gradient = channels_last(gradient)
        maps, weight, bias, offset = backward(maps, result, gradient, values, weight, bias, ctx.pool, ctx.relu, ctx.leak)
        return maps, weight, bias, offset if ctx.offset else None, None, None, None, None, None


def channels_last(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)
