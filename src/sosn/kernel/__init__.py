"""Fused kernels, each with a plain PyTorch function that defines its result.

Most of the time of a training step is memory traffic: batch norm, ReLU and pooling over the maps of every support–query pair.
The functions here compute the same as these layers, with less traffic:

    norm_pool   batch norm, 2×2 max-pooling and (leaky) ReLU of a map, in one pass (two in training)
    join_pool   the same for the sum of two maps, at the end of a residual stage, in training
    pair_pool   the same for a_s + b_q of every pair of a class and a query, from the maps of each side only
    first_block the same including the convolution before it, of maps or pairs with few input channels

The choice is automatic. A GPU uses Triton for all four. The CPU uses pair_pool, in PyTorch with the same algebra, and the plain
layers otherwise. engine("plain") turns the kernels off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Literal, get_args

from torch import Tensor

from sosn.errors import UsageError

MOST_ROWS = 2**31 - 2**16  # largest number of positions that kernels can index
Engine = Literal["auto", "plain", "triton"]
_chosen: ContextVar[str] = ContextVar("engine", default="auto")


@contextmanager
def engine(name: Engine) -> Iterator[None]:
    """Context manager that chooses how networks run: "auto" uses the kernels, "plain" the layers one by one.

    "triton" uses the Triton kernels on any device; on the CPU that needs TRITON_INTERPRET=1, for tests.
    """
    if name not in get_args(Engine):
        raise UsageError(f"engine is {name!r}; choose {', '.join(get_args(Engine))}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def enabled() -> bool:
    """Whether fused kernels may be used."""
    return _chosen.get() != "plain"


def on_triton(tensor: Tensor) -> bool:
    """Whether to use Triton kernels for this tensor."""
    return _chosen.get() == "triton" or (enabled() and tensor.is_cuda and _triton())


@cache
def _triton() -> bool:
    return find_spec("triton") is not None
