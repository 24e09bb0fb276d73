"""The signal that the kernel sends to this process when its parent exits."""

import ctypes
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def request_parent_death_signal(number: int) -> None:
    """Have the kernel send signal *number* when the thread that started this process ends; on Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
