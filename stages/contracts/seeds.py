"""Seeds from seeds."""

import hashlib


def derived_seed(seed: int, *path: int | str) -> int:
    """A seed of 63 bits that depends on *seed* and *path* alone, as (42, epoch 3) or (42, "weights")."""
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
