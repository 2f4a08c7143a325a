"""The similarity network s(ψ), which scores a class and a query (Fig. 2)."""

import sys
from typing import cast

import torch
from torch import Tensor, nn

from sosn.errors import UsageError
from sosn.kernel.blocks import block, run, run_pairs

WIDTH, HIDDEN = 64, 8  # filters per block, units of the first fully connected layer


class SimilarityNet(nn.Module):
    """Four blocks of 3×3 convolution (no padding), batch norm, ReLU and 2×2 max-pooling, then FC 8, ReLU, FC 1.

    Descriptors (B, channels, rows, rows) → logits (B,). Its size depends on the size of the matrices, not of the images:
    64 → 31 → 14 → 6 → 2. Refuses matrices that are too small for four blocks.
    """

    def __init__(self, channels: int, rows: int = 64) -> None:
        super().__init__()
        side = rows
        for _ in range(4):
            side = (side - 2) // 2
        if side < 1:
            raise UsageError(f"the similarity net needs matrices of 46 rows or more, not {rows}: use a wider encoder")
        layers: list[nn.Module] = []
        for inputs in (channels, WIDTH, WIDTH, WIDTH):
            layers += block(inputs, WIDTH, padding=0, pool=True)
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(WIDTH * side * side, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
        )  # fmt: skip

    def forward(self, descriptors: Tensor) -> Tensor:
        return self._finish(run(self.blocks, descriptors))

    def pairs(self, support: Tensor, query: Tensor, at_once: int = sys.maxsize) -> Tensor:
        """Logits (E, Q, L) of all stacked pairs of support (E, L, P, S, K, K) and query (E, Q, P, S, K, K).

        at_once: about how many pairs are in memory at a time, if batch norm uses running statistics.
        """
        maps = run_pairs(self.blocks, support, query, at_once)
        return self._finish(maps.flatten(0, 2)).view(maps.shape[:3])

    def _finish(self, maps: Tensor) -> Tensor:
        return cast(Tensor, self.head(maps)).squeeze(-1)


class SimilarityStreams(nn.Module):
    """One similarity net for all P permuted descriptors, or one for each ("multiple-similarity"), with averaged logits.

    Descriptors (B, P, channels, rows, rows) → logits (B,). Refuses streams other than 1 and P.
    """

    def __init__(self, permutations: int, streams: int, channels: int, rows: int) -> None:
        super().__init__()
        if streams not in (1, permutations):
            raise UsageError(f"streams is {streams}; with {permutations} permutations it must be 1 or {permutations}")
        inputs = channels * permutations // streams
        self.nets = nn.ModuleList(SimilarityNet(inputs, rows) for _ in range(streams))

    def forward(self, descriptors: Tensor) -> Tensor:
        if len(self.nets) == 1:
            return cast(Tensor, self.nets[0](descriptors.flatten(1, 2)))
        logits = [net(part) for net, part in zip(self.nets, descriptors.unbind(1), strict=True)]
        return torch.stack(logits).mean(0)

    def pairs(self, support: Tensor, query: Tensor, at_once: int = sys.maxsize) -> Tensor:
        """Logits (E, Q, L) of all pairs, as in SimilarityNet.pairs."""
        if len(self.nets) == 1:
            return cast(SimilarityNet, self.nets[0]).pairs(support, query, at_once)
        parts = zip(self.nets, support.split(1, 2), query.split(1, 2), strict=True)
        return torch.stack([cast(SimilarityNet, net).pairs(left, right, at_once) for net, left, right in parts]).mean(0)
