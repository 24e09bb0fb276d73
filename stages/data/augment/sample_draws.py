"""Random numbers of the samples of a batch, each a pure function of a seed and the index of its sample."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MAX_UINT64 = 2**64 - 1


class SampleDraws:
    """Uniform random numbers of *B* samples, drawn for all of them with one call.

    The numbers of a sample depend on *seed*, on its index and on the number of earlier draws, and not on the
    batch it is in. They are those of SplitMix64 (Steele, Lea and Flood, 2014), keyed by seed and index.
    """

    def __init__(self, seed: int, indices: Sequence[int] | Tensor) -> None:
        self._states = _mix(_mix(np.asarray(indices, np.uint64)) ^ np.uint64(seed))
        self._steps = 0

    def seeds(self) -> list[int]:
        """Return one seed of 63 bits for each sample."""
        seeds: list[int] = (self._next_bits() >> np.uint64(1)).tolist()
        return seeds

    def uniform(self, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Return one number from *low* to *high* for each sample, (B,), float64."""
        return low + (high - low) * ((self._next_bits() >> np.uint64(11)) * 2.0**-53)

    def integers(self, below: int | np.ndarray) -> np.ndarray:
        """Return one integer from 0 to *below* - 1 for each sample, (B,), int64; *below* is at least 1."""
        limits = np.asarray(below, np.int64)
        return np.minimum((self.uniform() * limits).astype(np.int64), limits - 1)

    def _next_bits(self) -> npt.NDArray[np.uint64]:
        """Return 64 random bits for each sample, (B,)."""
        self._steps += 1
        return _mix(self._states + np.uint64(self._steps * GOLDEN_GAMMA & MAX_UINT64))


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the output function of SplitMix64 of each value, uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
