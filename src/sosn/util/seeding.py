"""Random numbers by name: a generator for every purpose, the same for the same key on every run."""

import hashlib
import operator
from typing import Any

import torch

from sosn.errors import UsageError


def generator(*key: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator whose stream depends on the key alone, for instance ("train", seed, step).

    Keys replace state: what step 1,000 draws does not depend on steps 1 to 999, so a resumed run draws the same.
    """
    try:
        plain = tuple(part if isinstance(part, str) else operator.index(part) for part in key)  # whole numbers of any kind
    except TypeError:
        raise UsageError(f"the key of a generator is {key!r}; it is made of words and whole numbers") from None
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)


def check_generator(given: Any) -> None:
    """Refuse a seed where a generator is wanted."""
    if not isinstance(given, torch.Generator):
        raise UsageError(f"generator is {given!r}; it takes a torch.Generator: sosn.generator('my episodes', 0) makes one")
