"""Fused kernels, each beside the plain PyTorch that says what it computes.

Most time of a training step goes to memory traffic: batch norm, ReLU and pooling over the maps of every support–query pair. The
functions here give what those layers give, with less of it:

    norm_pool   batch norm, 2×2 max-pooling and ReLU, leaky or not, of a map, in one pass over it (two in training)
    join_pool   the same of two maps and their sum, at the end of a residual stage, in training
    pair_pool   the same of a_s + b_q for every pair of a class and a query, from the maps of each side alone
    first_block the same together with the convolution before it, of maps or of pairs, where it has few input channels

They are chosen by themselves: all four in Triton on a GPU; on the CPU pair_pool, in plain PyTorch with the same algebra, and
the layers themselves for the rest. engine("plain") turns them off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Literal, get_args

from torch import Tensor

from sosn.errors import UsageError

MOST_ROWS = 2**31 - 2**16  # positions that kernels can number
Engine = Literal["auto", "plain", "triton"]
_chosen: ContextVar[str] = ContextVar("engine", default="auto")


@contextmanager
def engine(name: Engine) -> Iterator[None]:
    """Choose how networks run inside: "auto" takes the kernels, "plain" the layers one by one.

    "triton" takes the Triton kernels wherever the tensors are; on the CPU that needs TRITON_INTERPRET=1, for tests.
    """
    if name not in get_args(Engine):
        raise UsageError(f"engine is {name!r}; choose {', '.join(get_args(Engine))}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def enabled() -> bool:
    """Whether faster ways than the layers one by one may be taken."""
    return _chosen.get() != "plain"


def on_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels serve this tensor."""
    return _chosen.get() == "triton" or (enabled() and tensor.is_cuda and _triton())


@cache
def _triton() -> bool:
    return find_spec("triton") is not None
