"""Ids of parameters: the text by which a record of Burn ties an optimizer's state to a parameter.

Since 0.15 an id is a number of 64 bits, written as its 8 little-endian bytes in base32 (digits, then a to v;
13 characters). 0.14 wrote 6 bytes (10 characters), 0.13 and before a UUID.
"""

import base64
import binascii
import hashlib
import re
from uuid import UUID

from stages.contracts.errors import RecordError

_BASE32 = re.compile(r"[0-9a-vA-V]*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{12}")
_NUMBER_BYTES = 8


def derive_param_id(path: str) -> str:
    """The id of the parameter at the dotted *path*: the same in every run and every epoch."""
    return encode_param_id(_hashed(path.encode()))


def encode_param_id(number: int) -> str:
    """The 13 characters for *number*, 0 to 2**64 - 1."""
    text = base64.b32hexencode(number.to_bytes(_NUMBER_BYTES, "little"))
    return text.decode().rstrip("=").lower()


def decode_param_id(text: str) -> int:
    """The number that the id *text* stands for, as Burn 0.15 and later read it.

    A UUID is hashed to 64 bits. Burn's own hash of one differs between builds and no file depends on it, so
    any will do that keeps apart what was apart. Raises `RecordError` for text that is no id.
    """
    data = _decoded(text)
    if data is not None and len(data) <= _NUMBER_BYTES:
        return int.from_bytes(data, "little")
    if _UUID.fullmatch(text):
        return _hashed(UUID(text).bytes)
    raise RecordError(
        f"{text!r} is no id of a parameter: expected 13 characters (Burn 0.15 and later), 10 (0.14), each a "
        "digit or a letter from a to v, or a UUID (0.13 and before)"
    )


def _decoded(text: str) -> bytes | None:
    """The bytes that *text* encodes; None where it is not the encoding of any."""
    if not _BASE32.fullmatch(text):
        return None
    try:
        data = base64.b32hexdecode(text.upper() + "=" * (-len(text) % 8))
    except binascii.Error:
        return None
    # bits beyond the last byte have to be zero, or two texts would be one id
    return data if base64.b32hexencode(data).decode().rstrip("=") == text.upper() else None


def _hashed(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:_NUMBER_BYTES], "little")
