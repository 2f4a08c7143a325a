"""Compiles the Triton kernels for a GPU where there is none, as the engine launches them, and prints their names.

A script of its own: kernels are either interpreted or compiled throughout a process.
"""

from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from sosn.kernel.batch_norm import Fixed, Running
from sosn.kernel.triton import join_pool as triton_join_pool
from sosn.kernel.triton import norm_pool as triton_norm_pool
from sosn.kernel.triton import pair_pool as triton_pair_pool
from sosn.kernel.triton.first_backward import backward
from sosn.kernel.triton.first_forward import forward, statistics
from sosn.kernel.triton.patches import Layout


class Absent:
    """An NVIDIA H200 that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int = 0) -> int:
        return 0


def compile_only(kernel: Any, grid: Any) -> Any:
    """In place of a launch."""

    def launch(*arguments: Any, **options: Any) -> None:
        compiled = kernel.warmup(*arguments, grid=grid, **options)
        print(f"{kernel.fn.__module__}.{kernel.fn.__name__}", len(compiled.asm["cubin"]), flush=True)

    return launch


def first_block(sides: list[Tensor], padding: int) -> None:
    channels = len(sides) * sides[0].shape[2]
    weight, number = torch.randn(64, channels, 3, 3), torch.randn(64)
    layout = Layout(sides[0].shape[2], padding, torch.bfloat16)
    running = Running(number, number, torch.tensor(0), 0.1)
    moments = statistics(sides, weight, number, number, number, layout, 1e-5, running)
    result, winners = forward(sides, weight, moments.values[3], moments.values[4], layout, True)
    backward(sides, weight, winners, moments, torch.randn_like(result), [True] * len(sides), layout)


def other_blocks() -> None:
    maps, weight = torch.randn(4, 64, 12, 12).bfloat16().to(memory_format=torch.channels_last), torch.rand(64)
    values = triton_norm_pool.moments(maps, weight, weight, weight, 1e-5, Running(weight, weight, torch.tensor(0), 0.1))
    result = triton_norm_pool.apply(maps, Fixed(weight, weight, weight, weight, weight, 1e-5), True, True)
    triton_norm_pool.backward(maps, result, torch.randn_like(result), values, weight, weight, True, True)
    triton_norm_pool.apply(maps, (weight, weight), False, True, 0.1)
    triton_norm_pool.backward(maps, maps, maps, values, weight, weight, False, True, 0.1)
    for pool in (True, False):
        result = triton_join_pool.apply(maps, maps, (values, values), pool, 0.1)
        triton_join_pool.backward(maps, maps, result, (values, values), weight.dtype, pool, 0.1)
    support, query = (torch.randn(1, count, 12, 12, 64).bfloat16().movedim(-1, -3) for count in (5, 3))
    mean, _ = triton_pair_pool.side_moments(query)
    result = triton_pair_pool.forward(support, query, (weight, weight))
    gradient = torch.randn_like(result).movedim(-3, -1).contiguous()
    passed, *_ = triton_pair_pool.backward(support, query, gradient, weight, weight)
    triton_pair_pool.spread(passed, support, mean, 3, weight, weight, torch.rand(2, 64))


if __name__ == "__main__":
    driver.set_active(Absent())
    JITFunction.__getitem__ = compile_only
    torch.manual_seed(0)
    first_block([torch.randn(1, count, 1, 64, 64).bfloat16() for count in (5, 3)], 0)
    first_block([torch.randn(1, 2, 3, 84, 84).bfloat16()], 1)
    other_blocks()
