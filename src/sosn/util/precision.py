"""Full precision for second-order statistics, also inside autocast."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


def full(tensor: Tensor) -> Tensor:
    """Return the tensor, converted to float32 if it has half precision."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def full_precision(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorate a function so that it runs outside autocast, with its first argument, a tensor, in float32 or better.

    Half precision lacks the range and resolution for squares of activations and for η′ ≈ 1000.
    """

    signature = inspect.signature(function)
    first = next(iter(signature.parameters))

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        tensor = bound.arguments[first]
        bound.arguments[first] = full(tensor)
        with torch.autocast(tensor.device.type, enabled=False):
            return function(*bound.args, **bound.kwargs)

    return wrapped
