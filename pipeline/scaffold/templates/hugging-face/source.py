"""The data. After an edit, `dvc repro` loads it again, and trains again."""

import numpy as np

from stages.data import Arrays

WORDS = ("", "plus", "minus", *map(str, range(10)))
"""The vocabulary. Its first word is the padding."""
MAX_TERMS = 6


def sums(samples: int = 2000, seed: int = 0) -> Arrays:
    """Return sums of up to six digits as ids of their words, (samples, 11), and whether each is above zero.

    A sum such as "3 minus 7 plus 2" ends with padding. An id is an index of `WORDS`.
    """
    generator = np.random.default_rng(seed)
    ids = np.zeros((samples, 2 * MAX_TERMS - 1), np.int64)
    signs = generator.choice((-1, 1), (samples, MAX_TERMS))
    signs[:, 0] = 1
    digits = generator.integers(0, 10, (samples, MAX_TERMS))
    ids[:, ::2] = digits + WORDS.index("0")
    ids[:, 1::2] = np.where(signs[:, 1:] > 0, WORDS.index("plus"), WORDS.index("minus"))
    terms = generator.integers(2, MAX_TERMS + 1, samples)
    ids[np.arange(ids.shape[1]) >= 2 * terms[:, None] - 1] = 0
    is_term = np.arange(MAX_TERMS) < terms[:, None]
    targets = ((signs * digits * is_term).sum(1) > 0).astype(np.int64)
    facts = {"vocabulary_size": len(WORDS), "class_names": ("at most zero", "above zero")}
    return Arrays(ids, targets, facts=facts, kinds={"inputs": "tokens"})
