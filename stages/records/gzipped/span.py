"""Where the deflated bytes of a file lie, and how they are read."""

import os
from typing import NamedTuple

from stages.contracts.errors import RecordError


class Span(NamedTuple):
    """Where the deflated bytes lie."""

    name: str
    handle: int
    start: int
    end: int

    def read(self, offset: int, size: int) -> bytes:
        """Up to *size* bytes at *offset*, none from behind the end."""
        return os.pread(self.handle, max(min(size, self.end - offset), 0), offset)

    def wrong(self, offset: int, what: str) -> RecordError:
        """The error for something at *offset* of the file."""
        return RecordError(f"{self.name}, offset {offset} of the compressed file: {what}")
