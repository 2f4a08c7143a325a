"""Second-order matrices M (K×K) of feature maps Φ (K×N), and moments of any order."""

import math

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.util.precision import full_precision


@full_precision
def shift_mean(features: Tensor, shift: float) -> Tensor:
    """Subtract β times the mean feature vector: φ := φ − βμ, 0 ≤ β ≤ 1 (Remark 1). The shape (…, K, N) is kept."""
    if not 0.0 <= shift <= 1.0:
        raise UsageError(f"mean shift β is {shift}; it must lie between 0 and 1")
    return features if shift == 0.0 else features - shift * features.mean(-1, keepdim=True)


@full_precision
def autocorrelation(features: Tensor, shift: float = 0.0) -> Tensor:
    """Average outer product of feature vectors, M = (1/N) Σₙ (φₙ−βμ)(φₙ−βμ)ᵀ (Eq. 2 with 𝒢 = identity).

    features: (…, K, N), N vectors of K features; returns (…, K, K). Refuses β outside 0…1.
    """
    phi = shift_mean(features, shift)
    return phi @ phi.mT / phi.shape[-1]  # (…, K, K)


@full_precision
def trace_normalise(matrix: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide by the trace, M / (Tr M + λ), so that entries lie between −1 and 1 (Eq. 4, right). (…, K, K) → (…, K, K)."""
    return matrix / (trace(matrix) + eps)


def trace(matrix: Tensor) -> Tensor:
    """Trace of each matrix, with two trailing axes of length 1 for broadcasting. (…, K, K) → (…, 1, 1)."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


@full_precision
def upper_triangle(matrices: Tensor, isometric: bool = False) -> Tensor:
    """Entries on and above the diagonal: (…, K, K) → (…, K·(K+1)/2).

    isometric: multiply the entries above the diagonal by √2, so that inner products of symmetric matrices are preserved.
    """
    size = matrices.shape[-1]
    rows, columns = torch.triu_indices(size, size, device=matrices.device)
    entries = matrices.flatten(-2).index_select(-1, rows * size + columns)
    return torch.where(rows == columns, entries, math.sqrt(2.0) * entries) if isometric else entries


@full_precision
def tensor_moment(features: Tensor, order: int) -> Tensor:
    """Moment of order r, Ψ(Φ) = (1/N) Σₙ φₙ⊗…⊗φₙ, r factors (Proposition 1, Eq. 1).

    It linearises the sum of polynomial kernels: ⟨Ψ(Φ), Ψ(Φ*)⟩ = 1/(N·N*) Σₙ Σₙ′ ⟨φₙ, φ*ₙ′⟩ʳ.
    features: (…, K, N); returns (…, K, …, K) with r axes of length K. Refuses an order below 1.
    """
    if order < 1:
        raise UsageError(f"order is {order}; it must be 1 or more")
    vectors = features.mT  # (…, N, K)
    power = vectors
    for _ in range(order - 1):
        power = (power.unsqueeze(-1) * vectors.unsqueeze(-2)).flatten(-2)  # (…, N, Kʳ)
    return torch.unflatten(power.mean(-2), -1, [features.shape[-2]] * order)
