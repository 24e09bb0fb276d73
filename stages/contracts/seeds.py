"""Derivation of seeds."""

import hashlib


def derive_seed(seed: int, *path: int | str) -> int:
    """Return a seed of 63 bits that depends only on *seed* and *path*, for example (42, "weights")."""
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
