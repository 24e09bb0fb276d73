"""Small complete files of every format, also of older Burn versions, which the fuzzer mutates."""

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import msgpack

from stages.records.formats import FORMATS, Format
from stages.records.record_tree import ITEM_SIZES, Map, Metadata, RawTensor, Record, Signed, Some, Variant

HALF = {
    "float": "half::binary16::f16",
    "int": "i16",
    "format": "burn_core::record::file::NamedMpkGzFileRecorder<…>",
    "version": "0.13.0",
    "settings": "HalfPrecisionSettings",
}
FULL = HALF | {"float": "f32", "int": "i32", "settings": "FullPrecisionSettings"}


@dataclass(frozen=True)
class Seed:
    """A complete file before gzip."""

    form: Format
    payload: bytes
    like: Any = field(default=None, repr=False)
    """Example for reading bincode."""


def tensor(dtype, *shape, fill=None):
    """Return a tensor of *dtype* with distinct bytes, or with all bytes *fill*."""
    size = ITEM_SIZES[dtype]
    for n in shape:
        size *= n
    if fill is not None:
        return RawTensor.of(dtype, shape, bytes([fill]) * size)
    values = bytes((i * 37 + 11) % 256 for i in range(size))
    return RawTensor.of(dtype, shape, bytes(b & 1 for b in values) if dtype == "Bool" else values)


def parameter(name, *shape, dtype="F32"):
    return {"id": name.ljust(13, "0")[:13], "param": tensor(dtype, *shape)}


def module():
    """A module as Burn has it: parameters, constants, arrays of modules."""
    return {
        "conv": {"weight": parameter("c1", 2, 1, 3, 3), "bias": parameter("c2", 2), "stride": (None, None)},
        "norm": {"gamma": parameter("n1", 2), "beta": None, "epsilon": None, "momentum": None},
        "layers": [{"weight": parameter(f"l{i}", 4, 3), "bias": None} for i in range(3)],
        "activation": None,
    }


def state():
    """Return values that only formats with names store: numbers, texts, all dtypes, empty containers."""
    return {
        "dtypes": {name: tensor(name, 3, 2) for name in ITEM_SIZES if name != "Flex32"},
        "scalar": tensor("F32"),
        "none of it": tensor("I64", 0, 3),
        "numbers": [0, 1, -1, 127, 128, -129, 65536, 2**40, -(2**40), 0.5, 1e300],
        "texts": ["", "ü", "x" * 40],
        "empty": {"map": {}, "list": [], "nil": None, "yes": True},
        "optimizer": {
            "c100000000000": {"V1": {"Rank1": {"momentum": {"time": 3, "moment_1": tensor("F32", 4)}}}}
        },
    }


def typed():
    """Return values that only bincode distinguishes: maps, vectors, options, enums, signed numbers."""
    state = {"time": 3, "sum": tensor("F32", 4), "more": Some(tensor("F16", 2)), "less": None}
    kinds = {
        "rate": 0.5,
        "yes": True,
        "step": Signed(-300),
        "name": "ü" * 9,
        "raw": bytes(9),
        "count": 70_000,
    }
    optimizer = Map({f"c{i}0000000000": Variant("V1", 0, Variant("Rank1", 0, state)) for i in range(3)})
    return {"optimizer": optimizer, "list": [tensor("I64", 2), tensor("Bool", 3)], "pair": (1, None), **kinds}


def old_bincode(form):
    """Return bincode of Burn 0.13: single numbers and no dtype."""
    texts = [text.encode() for text in FULL.values()]
    numbers = struct.pack("<6f", 1, 0.5, -2, 0, 1e30, 7)
    like = {"weight": {"id": "", "param": tensor("F32", 2, 3)}, "bias": None}
    item = bytes([13]) + b"uuid-as-text!" + b"\x06" + numbers + b"\x02\x02\x03" + b"\x00"
    return Seed(form, b"".join(bytes([len(text)]) + text for text in texts) + item, like)


def old(metadata, *, boxed):
    """Return a record of Burn 0.9 to 0.13: values as numbers, ids as UUIDs, no dtype, at first no ``_b``."""
    values = [15360, 0, 31744, 48128] if metadata is HALF else [1.0, 0.5, -2.25, 0.0]
    weight = {"id": "0b64ba4d-a1e4-4de2-a5a4-7c0a7a1d3a0e", "param": {"value": values, "shape": [2, 2]}}
    made = {"metadata": metadata, "item": {"linear": {"weight": weight, "bias": None}}}
    return made | {"_b": []} if boxed else made


def newest():
    """Return Burn 0.21's forms of a Bool and of a quantized tensor (which is refused)."""
    bools = {"bytes": b"\x00\x01", "shape": [2], "dtype": {"Bool": "Native"}}
    quantized = {"bytes": b"\x00\x01", "shape": [2], "dtype": {"QFloat": {"level": "Tensor"}}}
    for tensors in ({"mask": bools}, {"mask": bools, "weight": quantized}):
        yield {"metadata": FULL | {"version": "0.21.0"}, "item": tensors, "_b": []}


def older_payloads():
    """Return older records in MessagePack and JSON, as (payload, payload)."""
    records = [old(FULL, boxed=False), old(FULL, boxed=True), old(HALF, boxed=True), *newest()]
    for record in records:
        yield msgpack.packb(record), json.dumps(record, default=list).encode()


def seeds():
    """Return all seeds, always in the same order."""
    metadata = Metadata("f32", "i32", "burn_core::record::file::…", "0.21.0", "FullPrecisionSettings")
    found = []
    for form in FORMATS.values():
        trees = [module(), state()] if form.has_names else [module(), typed()]
        if form.name in ("burnpack", "safetensors"):
            trees[1:] = [{name: tensor(name, 3, 2) for name in ITEM_SIZES if name != "Flex32"}]
        for tree in trees:
            payload = b"".join(form.encode(Record(tree, metadata)))
            found.append(Seed(form, payload, None if form.has_names else tree))
        if not form.has_names:
            found.append(old_bincode(form))
        for packed, text in older_payloads():
            if "mpk" in form.name:
                found.append(Seed(form, packed))
            elif "json" in form.name:
                found.append(Seed(form, text))
    return found


def length_fields():
    """Return encoded lengths, from absurd to nearly correct, in every encoding of the format."""
    for size in (2**63, 2**63 - 1, 2**62, 2**40, 2**32, 2**32 - 1, 2**31, 2**31 - 1, 2**24, 65535, 256, 1, 0):
        yield struct.pack("<Q", size)
        yield struct.pack("<BQ", 253, size)  # bincode
        yield bytes([0xCF]) + struct.pack(">Q", size)  # MessagePack: a number
        yield from (bytes([tag]) + struct.pack(">Q", size) for tag in (0x1B, 0x5B, 0x7B, 0x9B, 0xBB))  # CBOR
        if size < 2**32:
            yield struct.pack("<I", size)
            yield struct.pack("<BI", 252, size)
            yield from (bytes([tag]) + struct.pack(">I", size) for tag in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF))
