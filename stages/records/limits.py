"""Limits on the memory and time that a file of unknown origin can make a reader spend.

A small value (a map, a text, a number outside a tensor) takes far more memory and time to read than its
bytes in the file. Readers count the values while they read. Writers count them before they write, so that a
recorder refuses a record that it could not read back.
"""

from dataclasses import dataclass

from stages.records.record_tree import RawTensor, Some, Tree, unwrap

LEAST_LIMIT, LIMIT_RATIO = 64 * 2**20, 100
"""Bytes of content that every gzip file may have; a file that is larger on disk may have this ratio times its
size."""
LARGEST_RATIO = 1032
"""Largest number of content bytes that one byte of deflate can encode."""
TRAINER_LIMIT = 1 << 30
"""Limit for a ``trainer-N`` file, whose history grows with every epoch and metric."""
LEAST_VALUES = 1 << 17
"""Small values that every file may have; each byte of its size on disk allows one more."""
LEAST_NUMBERS = 1 << 18
"""Numbers that lists outside tensors may have; each takes ten times its bytes in the file."""
LEAST_MEMORY = 48 * 2**20
"""Bytes of memory that the small values of every file may take; readers add twice the content's length."""
ADVICE = "if you trust the file, set a higher limit: --limit, or limit= in Python"
MAX_DEPTH = 128
"""Levels of nesting of a record, and parts of a dotted name."""
MIN_NUMBERS = 16
"""Length from which a list that contains only numbers counts as a list of numbers."""
_BYTES_PER_VALUE = 256


@dataclass(frozen=True)
class Limits:
    """The most that a reader spends on one file."""

    content: int
    """Bytes after gzip."""
    values: int
    """Maps, lists, texts, numbers and constants."""
    numbers: int
    """Numbers in lists that are not tensors."""
    memory: int
    """Bytes for small values; readers add twice the length of the content."""

    @classmethod
    def for_size(cls, size: int, limit: int | None = None) -> "Limits":
        """Return the limits for a file of *size* bytes on disk, raised to *limit* bytes of content."""
        raised = limit or 0
        values = raised // _BYTES_PER_VALUE
        return cls(
            content=max(LEAST_LIMIT, LIMIT_RATIO * size, raised),
            values=max(LEAST_VALUES + size, values),
            numbers=max(LEAST_NUMBERS, values),
            memory=max(LEAST_MEMORY, raised),
        )


def limit_after_verification(size: int) -> int:
    """Return the limit for a file of *size* bytes whose hash was verified: as much as gzip can hold."""
    return LARGEST_RATIO * size


def least_size(content: int, values: int) -> int:
    """Return the smallest gzip file size for which `Limits` allow *content* bytes and *values* values."""
    by_content = -(-content // LIMIT_RATIO) if content > LEAST_LIMIT else 0
    return max(by_content, values - LEAST_VALUES)


@dataclass
class ValueCounts:
    """Counts of the values in a record, apart from the bytes of its tensors."""

    values: int = 0
    """Maps, lists, texts, numbers and constants."""
    containers: int = 0
    """Maps and lists."""
    keys: int = 0
    """Entries of maps."""
    tensors: int = 0
    text: int = 0
    """Characters of texts and keys."""
    numbers: int = 0
    """Numbers in lists that contain only numbers."""

    @classmethod
    def of(cls, tree: Tree) -> "ValueCounts":
        """Return the counts of *tree*."""
        counts = cls()
        waiting = [tree]
        while waiting:
            waiting += counts._add(waiting.pop())
        return counts

    def _add(self, node: Tree) -> list[Tree]:
        """Count *node* itself and return its children."""
        if isinstance(node, Some):
            return [node.value]
        node = unwrap(node)
        self.values += 1
        if isinstance(node, RawTensor):
            self.values += 1
            self.tensors += 1
        if isinstance(node, dict):
            self.containers += 1
            self.keys += len(node)
            self.values += len(node)
            self.text += sum(map(len, node))
            return list(node.values())
        if isinstance(node, list | tuple):
            self.containers += 1
            if len(node) < MIN_NUMBERS or not all(isinstance(value, int | float) for value in node):
                return list(node)
            self.values += len(node)
            self.numbers += len(node)
        if isinstance(node, str | bytes):
            self.text += len(node)
        return []
