"""Batch norm's bookkeeping in Triton: from partial sums to all that later kernels need, with the running statistics."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sosn.kernel.batch_norm import Fixed, Norm, Running
from sosn.kernel.triton.maximum import higher

FILTERS = 16  # channels that one program takes
ROWS, WARPS = 256, 8  # partial sums at once
MEAN, VAR, INVERSE, SCALE, SHIFT = range(5)  # rows of the values


def settle(
    sums: Tensor,
    start: Tensor,
    weight: Tensor,
    bias: Tensor,
    offset: Tensor | None,
    eps: float,
    count: int,
    running: Running | None,
) -> Tensor:
    """Values (5, C) – mean, variance, 1/√(variance + eps), scale, shift – from sums (N, 2, C) of x − start and its square."""
    channels = len(weight)
    values = torch.empty(5, channels, device=sums.device, dtype=sums.dtype)
    _settle[(triton.cdiv(channels, FILTERS),)](
        sums, start, weight, bias, offset, values, *pointers(running), len(sums), channels, count, ROWS, FILTERS, eps,
        *tracking(running), num_warps=WARPS,
    )  # fmt: skip
    return values


def totals(sums: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """From sums (N, 2, C) of d and d·x̂: both divided by count, (2, C), and gradients (3, C).

    They are those of batch norm's bias and weight, and that of the convolution's bias, 0.
    """
    channels = sums.shape[2]
    shares = torch.empty(2, channels, device=sums.device, dtype=sums.dtype)
    gradients = torch.empty(3, channels, device=sums.device, dtype=dtype)
    _totals[(triton.cdiv(channels, FILTERS),)](
        sums, shares, gradients, len(sums), channels, count, ROWS, FILTERS, num_warps=WARPS
    )
    return shares, gradients


def pointers(running: Running | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return (None, None, None) if running is None else (running.mean, running.var, running.batches)


def norm_pointers(norm: Norm) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, float]:
    """What scale_and_shift takes: two tensors are scale and shift themselves."""
    return norm if isinstance(norm, Fixed) else (*norm, None, None, None, 0.0)


def tracking(running: Running | None) -> tuple[bool, Any]:
    """Whether running statistics are kept, and their momentum."""
    return running is not None, None if running is None else running.momentum


@triton.jit
def scale_and_shift(scale, shift, mean, var, offset, c, channels, EPS: tl.constexpr, WIDE: tl.constexpr):
    """Of the channels c; with running statistics, scale and shift are batch norm's weight and bias."""
    known = c < channels
    s = tl.load(scale + c, known, 0.0).to(WIDE)
    t = tl.load(shift + c, known, 0.0).to(WIDE)
    if var is not None:
        s = s / tl.sqrt(tl.load(var + c, known, 1.0).to(WIDE) + EPS)
        t += (tl.load(offset + c, known, 0.0).to(WIDE) - tl.load(mean + c, known, 0.0).to(WIDE)) * s
    return s, t


@triton.jit
def count_batch(batches):
    """One batch more, in a kernel before the one that reads the number."""
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def store_values(
    values, weight, bias, offset, running_mean, running_var, batches, o, mean, var, channels, count, EPS: tl.constexpr,
    TRACK: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """Values of the channels o from their mean and biased variance, and the running statistics with this batch."""
    known = o < channels
    inverse = 1 / tl.sqrt(var + EPS)
    scale = tl.load(weight + o, known, 0.0).to(tl.float64) * inverse
    tl.store(values + o, mean, known)
    tl.store(values + channels + o, var, known)
    tl.store(values + 2 * channels + o, inverse, known)
    tl.store(values + 3 * channels + o, scale, known)
    tl.store(values + 4 * channels + o, tl.load(bias + o, known, 0.0).to(tl.float64) - mean * scale, known)
    if TRACK:
        share = tl.full((), 0.0 if MOMENTUM is None else MOMENTUM, tl.float64)
        if MOMENTUM is None:
            share = 1 / tl.load(batches).to(tl.float64)
        whole = mean
        if offset is not None:
            whole += tl.load(offset + o, known, 0.0).to(tl.float64)
        before = tl.load(running_mean + o, known, 0.0).to(tl.float64)
        tl.store(running_mean + o, before * (1 - share) + whole * share, known)
        before = tl.load(running_var + o, known, 0.0).to(tl.float64)
        tl.store(running_var + o, before * (1 - share) + var * (share * count / tl.maximum(count - 1, 1)), known)


@triton.jit
def _add_up(sums, parts, channels, o, ROWS: tl.constexpr, FILTERS: tl.constexpr):
    """Both sums of all parts for the channels o, in double precision."""
    first = tl.zeros((ROWS, FILTERS), tl.float64)
    second = tl.zeros((ROWS, FILTERS), tl.float64)
    for start in range(0, parts, ROWS):
        part = start + tl.arange(0, ROWS)[:, None]
        here = (part < parts) & (o < channels)[None, :]
        place = sums + part * (2 * channels) + o[None, :]
        first += tl.load(place, here, 0.0).to(tl.float64)
        second += tl.load(place + channels, here, 0.0).to(tl.float64)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _settle(
    sums, start, weight, bias, offset, values, running_mean, running_var, batches, parts, channels, count, ROWS: tl.constexpr,
    FILTERS: tl.constexpr, EPS: tl.constexpr, TRACK: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    o = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    first, second = _add_up(sums, parts, channels, o, ROWS, FILTERS)
    first = first / count
    mean = tl.load(start + o, o < channels, 0.0).to(tl.float64) + first
    var = higher(second / count - first * first, 0.0)
    store_values(
        values, weight, bias, offset, running_mean, running_var, batches, o, mean, var, channels, count, EPS, TRACK, MOMENTUM
    )


@triton.jit
def _totals(sums, shares, gradients, parts, channels, count, ROWS: tl.constexpr, FILTERS: tl.constexpr):
    o = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    known = o < channels
    first, second = _add_up(sums, parts, channels, o, ROWS, FILTERS)
    tl.store(shares + o, first / count, known)
    tl.store(shares + channels + o, second / count, known)
    tl.store(gradients + o, first, known)
    tl.store(gradients + channels + o, second, known)
    tl.store(gradients + 2 * channels + o, tl.zeros_like(first), known)
