"""Sketches: short vectors that stand for long descriptors, so that all classes of a gallery can be compared quickly."""

import hashlib
import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from sosn.classify.class_store import ClassStore

SIZE = 256  # numbers of a sketch
AT_ONCE = 2_048  # sketches compared at once


def sketch(directions: Tensor) -> Tensor:
    """Project vectors (n, D) to sketches (n, SIZE) by random signs; vectors that are no longer than that stay as they are.

    Distances are kept to about 1/√(2·SIZE), whatever the vectors are (Johnson and Lindenstrauss). The signs are the same on
    every machine, because sketches are stored.
    """
    return directions if directions.shape[1] <= SIZE else directions @ _signs(directions.shape[1])


@cache
def _signs(length: int) -> Tensor:
    noise = np.frombuffer(hashlib.shake_128(b"sosn gallery").digest(length * SIZE // 8), np.uint8)
    signs: Tensor = 2 * torch.from_numpy(np.unpackbits(noise)).float() - 1
    return signs.view(length, SIZE) / math.sqrt(SIZE)


class Sketches:
    """The sketches of all classes of a store in memory, 512 bytes each, read when they are first needed."""

    def __init__(self, store: ClassStore) -> None:
        self.store = store
        self.ids = np.empty(0, np.int64)
        self.vectors = torch.empty(0, 0, dtype=torch.float16)
        self.squares = torch.empty(0)  # of their lengths

    def __len__(self) -> int:
        return len(self.ids)

    def refresh(self) -> None:
        """Follow the changes of the store, also those of other processes."""
        ids, found = self.store.sketches_after(int(self.ids[-1]) if len(self) else 0)
        if len(ids):
            vectors = torch.from_numpy(found)
            squares = torch.empty(len(ids))
            for first in range(0, len(ids), AT_ONCE):  # into one tensor, for the same reason as in nearest
                squares[first : first + AT_ONCE] = vectors[first : first + AT_ONCE].float().square().sum(1)
            self.ids = np.concatenate((self.ids, ids))
            self.vectors = torch.cat((self.vectors, vectors)) if len(self.vectors) else vectors
            self.squares = torch.cat((self.squares, squares))
        if len(self) != len(self.store):
            kept = np.isin(self.ids, self.store.ids())
            self.ids, self.vectors, self.squares = self.ids[kept], self.vectors[kept], self.squares[kept]

    def nearest(self, queries: Tensor, count: int) -> list[list[int]]:
        """Return the ids of the sketches nearest to each query (Q, SIZE), nearest first."""
        values, places = [], []
        buffer = torch.empty(AT_ONCE, self.vectors.shape[1])  # one for all parts, so that memory is not fragmented
        for first in range(0, len(self), AT_ONCE):
            part = self.vectors[first : first + AT_ONCE]
            closeness = 2 * queries @ buffer[: len(part)].copy_(part).T - self.squares[first : first + AT_ONCE]
            best = closeness.topk(min(count, closeness.shape[1]), dim=1)
            values.append(best.values)
            places.append(best.indices + first)
        order = torch.cat(values, 1).topk(min(count, len(self)), dim=1).indices
        return [self.ids[row].tolist() for row in torch.cat(places, 1).gather(1, order).numpy()]
