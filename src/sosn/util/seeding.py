"""Random generators by key: the same key gives the same stream in every run."""

import hashlib
import operator
from typing import Any

import torch

from sosn.errors import UsageError


def generator(*key: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator whose stream depends only on the key, for instance ("train", seed, step).

    No state is carried over: step 1,000 draws the same numbers in a resumed run. Refuses keys other than strings and integers.
    """
    try:
        plain = tuple(part if isinstance(part, str) else operator.index(part) for part in key)  # any integer type
    except TypeError:
        raise UsageError(f"the key of a generator is {key!r}; it must consist of strings and whole numbers") from None
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)


def check_generator(given: Any) -> None:
    """Raise UsageError if the argument is not a generator, but for example a seed."""
    if not isinstance(given, torch.Generator):
        raise UsageError(f"generator is {given!r}, not a torch.Generator: create one with sosn.generator('my episodes', 0)")
