"""How many small values a record has: they take far more memory and time to read than bytes in a file.

Readers count them while they read a file of unknown origin. Writers count them before, so that a recorder
refuses a record that it could not read back.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.records.tree import RawTensor, Some, Tree, Variant

MANY = 16
"""Values from which a list of nothing but numbers counts as one of numbers."""
_TENSOR_VALUES = 4
_TENSOR_KEYS = 3


@dataclass
class Demand:
    """Counts of what a record holds beside the bytes of its tensors."""

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
    """Numbers in lists of nothing but numbers."""

    @classmethod
    def of(cls, tree: Tree) -> "Demand":
        """Return the counts of *tree*."""
        demand = cls()
        waiting = [tree]
        while waiting:
            waiting += demand._add(waiting.pop())
        return demand

    def _add(self, node: Tree) -> list[Tree]:
        """Count *node* itself and return its children."""
        if isinstance(node, Some):
            return [node.value]
        if isinstance(node, Variant):
            node = {node.name: node.value}
        self.values += 1
        if isinstance(node, RawTensor):
            return self._add_tensor(node)
        if isinstance(node, dict):
            self.containers += 1
            self.keys += len(node)
            self.values += len(node)
            self.text += sum(map(len, node))
            return list(node.values())
        if isinstance(node, list | tuple):
            return self._add_list(node)
        if isinstance(node, np.ndarray):
            self.values += node.size
            self.numbers += node.size
        elif isinstance(node, str | bytes):
            self.text += len(node)
        return []

    def _add_tensor(self, tensor: RawTensor) -> list[Tree]:
        """Count a map of bytes, shape and dtype."""
        self.containers += 2
        self.keys += _TENSOR_KEYS
        self.tensors += 1
        self.values += _TENSOR_KEYS + _TENSOR_VALUES + len(tensor.shape)
        self.text += len("bytesshapedtype") + len(tensor.dtype)
        return []

    def _add_list(self, node: list[Any] | tuple[Any, ...]) -> list[Tree]:
        self.containers += 1
        if len(node) >= MANY and all(isinstance(value, int | float) for value in node):
            self.values += len(node)
            self.numbers += len(node)
            return []
        return list(node)
