"""The memory of this process in pages of 2 MiB, so that a fork copies page tables of 200 entries.

A fork of the server of forks, and the end of its process, take 25 ms of processor time instead of 70.
"""

import contextlib
import ctypes
from pathlib import Path

HUGE_BYTES = 2 << 20
MADV_COLLAPSE = 25
"""Linux 6.1; an older system returns an error, and the pages stay as they are."""


def collapse_pages():
    """Move the heap and the arenas of this process into huge pages, if the system has them."""
    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, access, *_, inode = line.split()[:5]
            if access == "rw-p" and inode == "0":
                first, last = (int(address, 16) for address in addresses.split("-"))
                first = -(-first // HUGE_BYTES) * HUGE_BYTES
                madvise(first, max(last // HUGE_BYTES * HUGE_BYTES - first, 0), MADV_COLLAPSE)


collapse_pages()
