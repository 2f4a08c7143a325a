"""Maxima and leaky ReLU that let nothing broken pass for a number."""

import triton
import triton.language as tl


@triton.jit
def higher(one, other):
    """The higher of two, and NaN where either is, as in PyTorch: ReLU would make 0 of it, and training would not notice."""
    return tl.maximum(one, other, tl.PropagateNan.ALL)


@triton.jit
def leaky(value, LEAK: tl.constexpr):
    """ReLU, or with a share of what is below 0."""
    return tl.where(value > 0, value, value * LEAK) if LEAK > 0 else higher(value, 0.0)


@triton.jit
def through(gradient, value, LEAK: tl.constexpr):
    """What of a gradient passes leaky ReLU, where the value, before or after it, is known."""
    return tl.where(value > 0, gradient, gradient * LEAK if LEAK > 0 else 0.0)
