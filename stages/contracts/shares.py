"""The share of each rank in a batch: rank r of R takes a contiguous part of its n samples.

The parts differ by at most one sample, and together they are the batch, so that the ranks train on what one
process would train on. Rank 0 has a sample of every batch that has any.
"""


def share_of(samples: int, rank: int, size: int) -> slice:
    """Return the part of *samples* samples that *rank* of *size* ranks takes.

    >>> [share_of(5, rank, 2) for rank in range(2)]
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return slice(-(-samples * rank // size), -(-samples * (rank + 1) // size))
