"""The numbers of tensor dtypes in each version of Burn, for bincode, which stores a number and no name."""

import re
from dataclasses import dataclass

from stages.contracts.errors import RecordError
from stages.records.record_tree import Metadata

_FLOATS = ("F64", "F32")
_HALVES_AND_INTEGERS = ("F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32")


@dataclass(frozen=True)
class DtypeTable:
    """The dtypes of a range of Burn versions, in the order of their numbers."""

    names: tuple[str, ...]
    bool_has_store: bool = False
    """True if the number of Bool is followed by a number for how it is stored."""


WITHOUT_U16 = DtypeTable((*_FLOATS, *_HALVES_AND_INTEGERS, "U8", "Bool", "QFloat"))
"""0.14 and 0.15."""
WITH_U16 = DtypeTable((*_FLOATS, *_HALVES_AND_INTEGERS, "U16", "U8", "Bool", "QFloat"))
"""0.16."""
WITH_FLEX32 = DtypeTable((*_FLOATS, "Flex32", *_HALVES_AND_INTEGERS, "U16", "U8", "Bool", "QFloat"))
"""0.17 to 0.20."""
WITH_BOOL_STORE = DtypeTable(WITH_FLEX32.names, bool_has_store=True)
"""0.21."""


def parse_version(metadata: Metadata) -> tuple[int, int]:
    """Return Burn's major and minor version. Raises `RecordError` if the metadata has another text."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})(\.|$)", metadata.version)
    if found is None:
        raise RecordError(
            f"the record's version is {metadata.version[:100]!r}; expected a Burn version such as '0.21.0', "
            "which determines the numbers of its dtypes"
        )
    return int(found[1]), int(found[2])


def find_dtype_table(metadata: Metadata) -> DtypeTable:
    """Return the table of the version in *metadata*. Raises `RecordError` before 0.14, which had none."""
    version = parse_version(metadata)
    if version < (0, 14):
        raise RecordError(
            f"Burn {metadata.version[:20]} stored no dtypes in its tensors; write for version 0.14 or later"
        )
    if version < (0, 16):
        return WITHOUT_U16
    if version < (0, 17):
        return WITH_U16
    return WITH_FLEX32 if version < (0, 21) else WITH_BOOL_STORE
