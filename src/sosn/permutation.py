"""Permutations Π of second-order matrices, which give the similarity net's local filters other neighbours."""

import math
from typing import Any

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.util.seeding import generator


def draw_permutations(size: int, count: int, seed: int) -> Tensor:
    """Draw P distinct permutations of 0…size−1, as integers (P, size). The first is the identity.

    Refuses a count below 1 or above the number of distinct permutations.
    """
    if count < 1:
        raise UsageError(f"permutations is {count}; it must be 1 (none) or more")
    if size < 12 and count > math.factorial(size):
        raise UsageError(f"permutations is {count}; {size} features have only {math.factorial(size)}")
    draw = generator("permutations", seed)
    chosen = [tuple(range(size))]
    while len(chosen) < count:
        candidate = tuple(torch.randperm(size, generator=draw).tolist())
        if candidate not in chosen:
            chosen.append(candidate)
    return torch.tensor(chosen)


def permute(matrices: Tensor, permutations: Tensor) -> Tensor:
    """Compute ΠₚᵀMΠₚ for every p (Eq. 11), by indexing rows and columns: (…, C, K, K) → (…, P, C, K, K)."""
    permuted: Tensor = _Permute.apply(matrices, permutations)
    return permuted


class _Permute(torch.autograd.Function):
    """Gather in both directions: the gradient of indexing is a scatter, whose order of additions is not deterministic."""

    @staticmethod
    def forward(ctx: Any, matrices: Tensor, permutations: Tensor) -> Tensor:
        ctx.save_for_backward(permutations)
        return torch.stack([_reorder(matrices, permutation) for permutation in permutations], -4)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (permutations,) = ctx.saved_tensors
        inverses = permutations.argsort(-1)
        parts = [_reorder(part, inverse) for part, inverse in zip(gradient.unbind(-4), inverses, strict=True)]
        return torch.stack(parts).sum(0), None


def _reorder(matrices: Tensor, permutation: Tensor) -> Tensor:
    return matrices.index_select(-2, permutation).index_select(-1, permutation)
