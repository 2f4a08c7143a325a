"""Permutations Π of second-order matrices, so that the local filters of the similarity net see different neighbours."""

import math
from typing import Any

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.util.seeding import generator


def draw_permutations(size: int, count: int, seed: int) -> Tensor:
    """P distinct permutations of 0…size−1, the first of them the identity, as integers (P, size)."""
    if count < 1:
        raise UsageError(f"permutations is {count}; 1 is the plain model")
    if size < 12 and count > math.factorial(size):
        raise UsageError(f"{count} distinct permutations of {size} features do not exist")
    draw = generator("permutations", seed)
    chosen = [tuple(range(size))]
    while len(chosen) < count:
        candidate = tuple(torch.randperm(size, generator=draw).tolist())
        if candidate not in chosen:
            chosen.append(candidate)
    return torch.tensor(chosen)


def permute(matrices: Tensor, permutations: Tensor) -> Tensor:
    """ΠₚᵀMΠₚ for every p (Eq. 11): (…, C, K, K) → (…, P, C, K, K), by indexing rows and columns with Π."""
    permuted: Tensor = _Permute.apply(matrices, permutations)
    return permuted


class _Permute(torch.autograd.Function):
    """Gathers in both directions: the scatter that indexing has for a gradient adds in an order that threads decide."""

    @staticmethod
    def forward(ctx: Any, matrices: Tensor, permutations: Tensor) -> Tensor:
        ctx.save_for_backward(permutations)
        return torch.stack([_reorder(matrices, one) for one in permutations], -4)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (permutations,) = ctx.saved_tensors
        parts = [_reorder(part, one.argsort()) for part, one in zip(gradient.unbind(-4), permutations, strict=True)]
        return torch.stack(parts).sum(0), None


def _reorder(matrices: Tensor, permutation: Tensor) -> Tensor:
    return matrices.index_select(-2, permutation).index_select(-1, permutation)
