"""Batch norm's running statistics, as they are kept in training and used in evaluation."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Running:
    """The tensors that batch norm keeps, and how much a batch counts: momentum, or as much as each before if that is None."""

    mean: Tensor
    var: Tensor
    batches: Tensor
    momentum: float | None

    @torch.no_grad()
    def update(self, mean: Tensor, var: Tensor, offset: Tensor | None, count: int) -> None:
        """Take in a batch of count values a channel, with this mean, without the offset, and biased variance."""
        self.batches.add_(1)
        share = self.momentum if self.momentum is not None else 1 / self.batches
        self.mean.mul_(1 - share).add_((mean + (0 if offset is None else offset)) * share)
        self.var.mul_(1 - share).add_(var * (share * count / max(count - 1, 1)))


class Fixed(NamedTuple):
    """Batch norm in evaluation mode, after a convolution whose bias, the offset, was left out."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    offset: Tensor
    eps: float

    def affine(self) -> tuple[Tensor, Tensor]:
        """The scale and shift (C,) that all of it amounts to."""
        scale = self.weight * (self.var + self.eps).rsqrt()
        return scale, (self.offset - self.mean) * scale + self.bias


Norm = Fixed | tuple[Tensor, Tensor]  # in evaluation, or the scale and shift that a batch's own statistics amount to
