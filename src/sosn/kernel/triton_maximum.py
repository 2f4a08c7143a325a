"""A maximum that lets nothing broken pass for a number."""

import triton
import triton.language as tl


@triton.jit
def higher(one, other):
    """The higher of two, and NaN where either is, as in PyTorch: ReLU would make 0 of it, and training would not notice."""
    return tl.maximum(one, other, tl.PropagateNan.ALL)
