"""The C library's allocator, told that the next batch will want the same memory again."""

import ctypes
import functools
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
BIG = 1 << 30


@functools.cache
def keep_big_blocks() -> bool:
    """Have freed blocks of up to 1 GiB stay with this process; whether the C library knows how (glibc does).

    Left alone it hands every large tensor back to the system and gets it again, page by page, at the next
    step. Costs some memory, changes no number, and holds for the whole process.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(M_MMAP_THRESHOLD, BIG) and mallopt(M_TRIM_THRESHOLD, BIG))
