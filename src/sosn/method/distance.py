"""Similarities of query and class vectors, for methods that compare without a network."""

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from sosn.errors import UsageError
from sosn.util.precision import full_precision

MetricName = Literal["euclidean", "cosine", "inner"]


def check_metric(name: str) -> None:
    if name not in get_args(MetricName):
        raise UsageError(f"metric is {name!r}; choose one of {', '.join(get_args(MetricName))}")


@full_precision
def nearness(query: Tensor, classes: Tensor, metric: MetricName) -> Tensor:
    """Minus the squared Euclidean distance, the cosine, or the inner product: (…, Q, D) and (…, L, D) → (…, Q, L)."""
    classes = classes.to(query.dtype)
    if metric == "cosine":
        return F.normalize(query, dim=-1) @ F.normalize(classes, dim=-1).mT
    inner = query @ classes.mT
    if metric == "inner":
        return inner
    return 2 * inner - query.square().sum(-1, keepdim=True) - classes.square().sum(-1).unsqueeze(-2)
