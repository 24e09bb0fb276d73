"""Ids of parameters: the text by which a Burn record associates optimizer state with a parameter.

Since 0.15 an id is a number of 64 bits, written as its 8 little-endian bytes in base32 (digits, then a to v;
13 characters). Burn 0.14 wrote 6 bytes (10 characters); 0.13 and earlier wrote a UUID.
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
    """Return the id of the parameter at the dotted *path*: the same in every run and every epoch."""
    return encode_param_id(_hash_bytes(path.encode()))


def encode_param_id(number: int) -> str:
    """Return the 13 characters for *number*, 0 to 2**64 - 1."""
    text = base64.b32hexencode(number.to_bytes(_NUMBER_BYTES, "little"))
    return text.decode().rstrip("=").lower()


def decode_param_id(text: str) -> int:
    """Return the number that the id *text* represents, as Burn 0.15 and later read it.

    A UUID is hashed to 64 bits. Burn's own hash of a UUID differs between builds and no file depends on it,
    so any hash that keeps different ids different is correct. Raises `RecordError` if *text* is not an id.
    """
    data = _decode_base32(text)
    if data is not None and len(data) <= _NUMBER_BYTES:
        return int.from_bytes(data, "little")
    if _UUID.fullmatch(text):
        return _hash_bytes(UUID(text).bytes)
    raise RecordError(
        f"{text!r} is not a parameter id: expected 13 characters (Burn 0.15 and later) or 10 (0.14), each a "
        "digit or a letter from a to v, or a UUID (0.13 and earlier)"
    )


def _decode_base32(text: str) -> bytes | None:
    """Return the bytes that *text* encodes, or None if it is not a valid encoding."""
    if not _BASE32.fullmatch(text):
        return None
    try:
        data = base64.b32hexdecode(text.upper() + "=" * (-len(text) % 8))
    except binascii.Error:
        return None
    # Bits beyond the last byte must be zero; otherwise two texts would encode one id.
    return data if base64.b32hexencode(data).decode().rstrip("=") == text.upper() else None


def _hash_bytes(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:_NUMBER_BYTES], "little")
