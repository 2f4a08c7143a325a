"""The first block of a network, fused: a 3×3 convolution with few input channels, batch norm, 2×2 max-pooling and ReLU.

The output of the convolution, by far the largest map, is never stored. It is linear in the 3×3 patches p of the input,
x = w·p, and a patch has few numbers, so the sums of batch norm over all positions follow from one small matrix, E[p pᵀ]:

    mean of x     w·E[p]                       its square    wᵀ E[p pᵀ] w
    Σ d·x         w·Σ d·p                      Σ p·D         scale·(Σ d·p − n·(c₀·E[p] + c₁·(E[p pᵀ] w − mean·E[p])))

where d is the gradient after pooling and ReLU, at the maximum of each four, and D = scale·(d − c₀ − c₁·(x − mean)) is that of
x. So the backward pass needs only the position of each maximum, which is stored as one byte per pooled value.

For pairs, x = w_s·p_s + w_q·p_q with a patch of each side. The matrix then has a block for each side and a cross block: within
an episode, the product of the mean patches of its classes and of its queries.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sosn.kernel import MOST_ROWS
from sosn.kernel.batch_norm import Running
from sosn.relation import stack_pairs

IMAGE_CHANNELS = 3  # most channels of an image for this kernel
SIDE_CHANNELS = 3  # most channels of one side of a pair


def plain(
    maps: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    padding: int,
    relu: bool,
) -> Tensor:
    """Reference of first_pool, for maps (B, C, H, W)."""
    maps = F.conv2d(maps, weight, offset, padding=padding)
    maps = F.max_pool2d(F.batch_norm(maps, None, None, norm_weight, norm_bias, training=True, eps=eps), 2)
    return F.relu(maps) if relu else maps


def plain_pairs(
    support: Tensor, query: Tensor, weight: Tensor, offset: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, eps: float
) -> Tensor:
    """Reference of first_pairs: (E, L, P, S, H, W), (E, Q, P, S, H, W) → (E, Q, L, C, h, w)."""
    pairs = stack_pairs(support, query).flatten(3, 4)
    pooled = plain(pairs.flatten(0, 2), weight, offset, norm_weight, norm_bias, eps, 0, True)
    result: Tensor = pooled.unflatten(0, pairs.shape[:3])
    return result


def serves(maps: Tensor, weight: Tensor, most: int, partners: int = 1) -> bool:
    """Whether the kernel supports maps (B, C, H, W), each paired with `partners` others: few channels, not empty, not too many.

    Triton's interpreter supports any precision. On a GPU, the kernel is faster only in half precision.
    """
    half = not maps.is_cuda or _precision(maps) in (torch.bfloat16, torch.float16)
    rows = maps.shape[0] * maps.shape[2] * maps.shape[3] * partners
    return half and maps.shape[1] <= most and weight.shape[2:] == (3, 3) and min(maps.shape[2:]) >= 4 and 0 < rows < MOST_ROWS


def first_pool(
    maps: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    padding: int,
    relu: bool,
    running: Running | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the block, (B, c, H, W) → (B, C, h, w); also return mean and (biased) variance of the convolution without its bias.

    offset is that bias. Batch norm subtracts it again, so its gradient is 0. Running statistics are updated.
    """
    how = _How(eps, relu, padding, weight.shape[1], _precision(maps), running)
    result, mean, var = _Block.apply(None, maps.unsqueeze(0), weight, offset, norm_weight, norm_bias, how)
    return result.squeeze(0), mean, var


def first_pairs(
    support: Tensor,
    query: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    running: Running | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the block on every pair: (E, L, P, S, H, W), (E, Q, P, S, H, W) → (E, Q, L, C, h, w); mean and variance as above."""
    how = _How(eps, True, 0, support.shape[3], _precision(query), running)
    result: tuple[Tensor, Tensor, Tensor] = _Block.apply(
        support.flatten(2, 3), query.flatten(2, 3), weight, offset, norm_weight, norm_bias, how
    )
    return result


@dataclass(frozen=True)
class _How:
    eps: float
    relu: bool
    padding: int
    group: int  # input channels of the weight for one side; those of the other side follow
    precision: torch.dtype  # of the factors in matrix products
    running: Running | None


def _precision(maps: Tensor) -> torch.dtype:
    """The type in which a convolution would compute."""
    device = maps.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else maps.dtype


class _Block(torch.autograd.Function):
    """Takes support (E, L, C, H, W), or None without pairs, and query (E, Q, C, H, W)."""

    @staticmethod
    def forward(
        ctx: Any, support: Tensor | None, query: Tensor, weight: Tensor, offset: Tensor | None, norm_weight: Tensor,
        norm_bias: Tensor, how: _How,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        from sosn.kernel.triton.first_forward import forward, statistics
        from sosn.kernel.triton.patches import Layout

        layout = Layout(how.group, how.padding, how.precision)
        sides = [side.contiguous() for side in (support, query) if side is not None]
        moments = statistics(sides, weight, offset, norm_weight, norm_bias, layout, how.eps, how.running)
        mean, var, _, scale, shift = moments.values
        result, winners = forward(sides, weight, scale, shift, layout, how.relu)
        ctx.save_for_backward(*sides, weight, winners, *moments)
        ctx.layout, ctx.offset, ctx.sides = layout, offset is not None, len(sides)
        ctx.mark_non_differentiable(mean, var)
        return result, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        from sosn.kernel.triton.first_backward import backward
        from sosn.kernel.triton.patches import Moments

        sides, (weight, winners, *moments) = ctx.saved_tensors[: ctx.sides], ctx.saved_tensors[ctx.sides :]
        missing = 2 - ctx.sides  # without pairs there is no support
        inputs, d_weight, d_norm_weight, d_norm_bias, offset = backward(
            sides, weight, winners, Moments(*moments), gradient, ctx.needs_input_grad[missing:2], ctx.layout
        )
        return *[None] * missing, *inputs, d_weight, offset if ctx.offset else None, d_norm_weight, d_norm_bias, None
