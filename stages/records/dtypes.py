"""Element types of tensors in files, under Burn's names. This module does not import torch."""

ITEM_SIZES = {
    "F64": 8,
    "F32": 4,
    "Flex32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "Bool": 1,
}
"""Bytes of one element. ``Flex32`` is stored as ``F32``; ``Bool`` is one byte, 0 or 1."""
FLOATS = frozenset({"F64", "F32", "Flex32", "F16", "BF16"})
INTEGERS = frozenset({"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"})
NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "Flex32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "Bool": "u1",
}
"""NumPy's name of each type. NumPy has no BF16, so it is represented by its bits."""
BOOL_STORES = {"Native": 1, "U8": 1, "U32": 4}
"""How Burn since 0.21 stores a Bool, in the order of its enum, with the bytes of one element."""
MAX_DIMENSIONS = 32
"""Dimensions of a tensor in a file."""
MAX_ELEMENTS = 1 << 63
"""Bound on the number of elements of a tensor; the number must be smaller."""
