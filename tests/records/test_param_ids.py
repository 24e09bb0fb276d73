"""Ids of parameters, of Burn files and derived from paths."""

import uuid
from pathlib import Path

import msgpack
import pytest

from stages.contracts.errors import RecordError
from stages.records.dotted_names import decode_param_id, derive_param_id, encode_param_id

REAL = Path(__file__).parents[3] / "shared" / "burn" / "model.mpk"


@pytest.mark.skipif(not REAL.is_file(), reason=f"the real record {REAL} is not here")
def test_every_id_of_a_burn_file_is_restored_from_its_number():
    def ids(node):
        if isinstance(node, dict):
            yield from [node["id"]] if "id" in node else [i for value in node.values() for i in ids(value)]
        if isinstance(node, list):
            yield from (i for value in node for i in ids(value))

    found = list(ids(msgpack.unpackb(REAL.read_bytes())["item"]))

    assert len(found) == len(set(found)) == 42
    assert [encode_param_id(decode_param_id(text)) for text in found] == found


def test_id_is_eight_little_endian_bytes_in_base32():
    assert encode_param_id(0) == "0" * 13
    assert encode_param_id(1) == "0400000000000"
    assert encode_param_id(2**64 - 1) == "vvvvvvvvvvvvu"
    assert decode_param_id("0400000000000") == 1
    assert decode_param_id("VVVVVVVVVVVVU") == 2**64 - 1
    assert derive_param_id("fc.weight") == derive_param_id("fc.weight")
    assert derive_param_id("fc.weight") != derive_param_id("fc.bias")
    assert len(derive_param_id("")) == 13


def test_ids_of_older_burn_versions_are_decoded():
    """Six bytes fill the low end, as in Burn's own test; UUIDs stay apart from each other."""
    assert decode_param_id("5kmiqb9d5k"[:10]) < 2**48
    assert decode_param_id(encode_param_id(int.from_bytes(bytes([45] * 6), "little"))) == int.from_bytes(
        bytes([45] * 6), "little"
    )
    names = [str(uuid.UUID(int=value << 64 | 7)) for value in range(100)]
    assert len({decode_param_id(name) for name in names}) == 100
    assert decode_param_id(names[3].upper()) == decode_param_id(names[3])


@pytest.mark.parametrize(
    "text",
    ["w" * 13, "invalid_id", "1", "vvvvvvvvvvvvv", "0" * 16, "30b82c23-788d-4d63-ada258d5f13c", "é" * 13],
)
def test_invalid_id_is_refused(text):
    with pytest.raises(RecordError, match="is not a parameter id"):
        decode_param_id(text)
