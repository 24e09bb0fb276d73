"""The element types a tensor in a file may have, as Burn names them; no torch here."""

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
"""Bytes of one element. ``Flex32`` is kept as ``F32``; ``Bool`` is one byte of 0 or 1."""
FLOATS = frozenset({"F64", "F32", "Flex32", "F16", "BF16"})
INTEGERS = frozenset({"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"})
