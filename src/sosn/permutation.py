"""Permutations Π of second-order matrices, so that the local filters of the similarity net see different neighbours."""

import math

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.seeding import generator


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
    rows = permutations[:, :, None]  # (P, K, 1)
    columns = permutations[:, None, :]  # (P, 1, K)
    return matrices[..., rows, columns].movedim(-3, -4)  # (…, C, P, K, K) → (…, P, C, K, K)
