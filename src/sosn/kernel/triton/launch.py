"""How Triton kernels are launched."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from sosn.kernel import MOST_ROWS

TILE = 64  # channels that a program takes, at most
TYPES = {torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Launch(NamedTuple):
    """Sizes that change nothing but the speed of a kernel. `benchmarks/kernels.py` finds good ones."""

    block: int  # rows that a program takes at once
    warps: int
    stages: int = 1  # of loads that are under way while others are used
    programs: int = 0  # that share the rows, at most; 0: one for each block
    registers: int | None = None  # of a thread, at most

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}

    def grid(self, rows: int) -> int:
        """Programs that share so many rows evenly."""
        tiles = max(1, int(triton.cdiv(rows, self.block)))
        return int(triton.cdiv(tiles, triton.cdiv(tiles, self.programs))) if self.programs else tiles


def tiles(channels: int) -> tuple[int, int]:
    """Channels that a program takes, a power of two, and programs that share so many channels."""
    each = min(power(channels), TILE)
    return each, int(triton.cdiv(channels, each))


def power(number: int) -> int:
    """The least power of two that holds so many."""
    return int(triton.next_power_of_2(number))


def index(rows: int) -> Any:
    """The type that numbers so many rows: divisions in 64 bits would cost more than all else."""
    return tl.int32 if rows < MOST_ROWS else tl.int64


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums of numbers in this precision are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
