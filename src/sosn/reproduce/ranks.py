"""Ranks of a model's second-order matrices at several image sizes."""

from typing import Any

import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.errors import UsageError
from sosn.method import Method
from sosn.second_order import autocorrelation
from sosn.util.seeding import generator

TOLERANCE = 1e-6  # an eigenvalue below this share of the largest counts as 0


def rank(matrices: Tensor) -> Tensor:
    """Return the numerical rank of symmetric matrices (…, K, K)."""
    sizes = torch.linalg.eigvalsh(matrices.double()).abs()
    counted: Tensor = (sizes > TOLERANCE * sizes.amax(-1, keepdim=True)).sum(-1)
    return counted


def effective_rank(matrices: Tensor) -> Tensor:
    """Return exp of the entropy of the normalised eigenvalues (Roy & Vetterli, 2007): K if all are equal, 1 for one."""
    sizes = torch.linalg.eigvalsh(matrices.double()).abs()
    total = sizes.sum(-1, keepdim=True)
    shares = sizes / torch.where(total > 0, total, 1.0)
    return torch.where(total[..., 0] > 0, torch.special.entr(shares).sum(-1).exp(), 0.0)


@torch.inference_mode()
def ranks(method: Method, bank: Bank, sizes: tuple[int, ...], images: int, seed: int) -> list[dict[str, Any]]:
    """Measure, for each image size, the number of feature vectors N and the mean ranks before and after power normalisation.

    The same model is used at all sizes: its encoder is convolutional, and its similarity net takes K×K matrices at any size.
    Refuses a method without second-order matrices.
    """
    relation = method.second_order
    if relation is None:
        raise UsageError(f"ranks need a method with second-order matrices, such as SoSN, not {method.name!r}")
    method.eval()
    rows = torch.randperm(len(bank), generator=generator("ranks", seed))[:images].to(bank.device)
    results, usual = [], method.preprocessing.size
    try:
        for size in sizes:
            method.preprocessing.size = size
            parts = [method.encode(part.to(method.device)) for part in bank.images[rows].split(64)]
            maps = torch.cat(parts).double()
            matrices = autocorrelation(maps, relation.shift)
            normalised = relation.describe_query(maps)[:, 0]
            numbers = rank(matrices).double()
            results.append(
                {
                    "size": size, "trained": size == usual, "vectors": maps.shape[-1], "features": maps.shape[-2],
                    "rank": numbers.mean().item(), "full_rank": (numbers == maps.shape[-2]).double().mean().item(),
                    "effective_rank": effective_rank(matrices).mean().item(),
                    "normalised_rank": rank(normalised).double().mean().item(),
                    "normalised_effective_rank": effective_rank(normalised).mean().item(),
                }
            )  # fmt: skip
    finally:
        method.preprocessing.size = usual
    return results
