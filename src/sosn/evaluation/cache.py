"""Encode the images of many episodes once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.method.base import Method
from sosn.util.precision import full

IMAGES = {"cpu": 64, "cuda": 1_024}  # encoded at once
MEMORY = 4 * 2**30  # bytes that encoded images may take on a CPU


@dataclass(frozen=True)
class FeatureCache:
    """Features of the images that episodes use; with one shot per class, their descriptors, which are smaller."""

    rows: Tensor  # sorted rows of the bank
    features: Tensor
    described: bool = False

    def logits(self, method: Method, support: Tensor, query: Tensor) -> Tensor:
        """Return logits (E, Q, L) of episodes, from their rows of the bank: support (E, L, Z) and query (E, Q)."""
        shots, queries = self.look_up(support, query)
        if self.described:
            return full(method.compare(shots.squeeze(2), queries))
        return full(method.compare_features(shots, queries))

    def look_up(self, *wanted: Tensor) -> list[Tensor]:
        places = [torch.searchsorted(self.rows, rows.to(self.rows.device).contiguous()) for rows in wanted]
        return [self.features[place.to(self.features.device)] for place in places]


def cache_features(method: Method, data: Bank, *wanted: Tensor, one_shot: bool = False) -> FeatureCache | None:
    """Encode every image of these rows of a bank once. Returns None if the method cannot, or if memory does not suffice."""
    if not method.describes_images:
        return None
    described = one_shot and method.fixed_size
    rows = torch.cat([part.flatten() for part in wanted]).unique()
    at_once = IMAGES.get(method.device.type, 64)

    def encode(part: Tensor) -> Tensor:
        features = method.encode(data.images[part.to(data.device)].to(method.device))
        return method.describe(features.unsqueeze(1)) if described else features

    first = encode(rows[:at_once])
    if first[0].nbytes * len(rows) > _memory(method.device):
        return None
    features = first.new_empty(len(rows), *first.shape[1:])
    features[:at_once] = first
    for start in range(at_once, len(rows), at_once):
        features[start : start + at_once] = encode(rows[start : start + at_once])
    return FeatureCache(rows, features, described)


def _memory(device: torch.device) -> int:
    """Return the bytes that encoded images may take. Beyond that, each episode encodes its images."""
    return torch.cuda.get_device_properties(device).total_memory // 4 if device.type == "cuda" else MEMORY
