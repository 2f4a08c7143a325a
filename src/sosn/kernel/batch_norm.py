"""Running statistics of batch norm, updated in training and used in evaluation."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Running:
    """The running statistics of batch norm. momentum: weight of a new batch; None means a cumulative average."""

    mean: Tensor
    var: Tensor
    batches: Tensor
    momentum: float | None

    @torch.no_grad()
    def update(self, mean: Tensor, var: Tensor, offset: Tensor | None, count: int) -> None:
        """Update with a batch of `count` values per channel. mean excludes the offset; var is biased."""
        self.batches.add_(1)
        share = self.momentum if self.momentum is not None else 1 / self.batches
        self.mean.mul_(1 - share).add_((mean + (0 if offset is None else offset)) * share)
        self.var.mul_(1 - share).add_(var * (share * count / max(count - 1, 1)))


class Fixed(NamedTuple):
    """Batch norm in evaluation mode, after a convolution without its bias, which is the offset here."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    offset: Tensor
    eps: float

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return the equivalent scale and shift, (C,) each."""
        scale = self.weight * (self.var + self.eps).rsqrt()
        return scale, (self.offset - self.mean) * scale + self.bias


Norm = Fixed | tuple[Tensor, Tensor]  # in evaluation, or the scale and shift from batch statistics
