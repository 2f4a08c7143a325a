"""Random numbers by name: a generator for every purpose, the same for the same key on every run."""

import hashlib

import torch


def generator(*key: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator whose stream depends on the key alone, for instance ("train", seed, step).

    Keys replace state: what step 1,000 draws does not depend on steps 1 to 999, so a resumed run draws the same.
    """
    plain = tuple(part if isinstance(part, str) else int(part) for part in key)  # whole numbers of any kind
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
