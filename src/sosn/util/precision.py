"""Second-order statistics in full precision, whatever autocast says around them."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


def full(tensor: Tensor) -> Tensor:
    """The tensor, in float32 where it is half precision."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def full_precision(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Run a function whose first argument is a tensor outside autocast, in float32 where the tensor is bfloat16 or float16.

    Squares of activations and exponents of η′ ≈ 1000 leave the range and resolution of half precision.
    """

    signature = inspect.signature(function)
    first = next(iter(signature.parameters))

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        given = signature.bind(*args, **kwargs)
        tensor = given.arguments[first]
        given.arguments[first] = full(tensor)
        with torch.autocast(tensor.device.type, enabled=False):
            return function(*given.args, **given.kwargs)

    return wrapped
