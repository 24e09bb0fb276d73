"""Large files, correct or nearly correct, that encode much structure in few bytes, even fewer after gzip."""

import json
import struct
import zlib

import msgpack
from fuzz_seeds import FULL, tensor
from isal import isal_zlib

from stages.records.record_tree import Map

PACKED_UNITS = [
    *(
        b"\x00",
        b"\xc0",
        b"\xc3",
        b"\x80",
        b"\x90",
        b"\xa0",
        b"\xa1a",
        b"\x91\x00",
        b"\x93\x01\x02\x03",
        b"\x81\xa1a\x00",
    ),
    *(
        b"\xca\x00\x00\x00\x00",
        b"\xcf" + b"\xff" * 8,
        b"\xd9\x20" + b"a" * 32,
        b"\xc4\x00",
        b"\x91" * 50 + b"\x00",
    ),
    b"\x83" + b"".join(map(msgpack.packb, ("bytes", b"", "shape", [0], "dtype", "F32"))),
]
TEXT_UNITS = [
    *(
        b"0",
        b"null",
        b"true",
        b"{}",
        b"[]",
        b'""',
        b'"a"',
        b"[0]",
        b"[1,2,3]",
        b'{"a":0}',
        b"1.5",
        b"18446744073709551615",
    ),
    *(
        b"[" * 50 + b"]" * 50,
        b'"\\u00e9"',
        b'{"bytes":[],"shape":[0],"dtype":"F32"}',
        b'{"value":[1.0],"shape":[1]}',
        b"1e5",
    ),
]


def bomb(rng, form, size):
    """Return a complete file of about *size* bytes before gzip, and the example for reading it."""
    if form.name in MAKERS:
        return MAKERS[form.name](rng, size), None
    return bincode(rng, size)


def packed(rng, size):
    """Return a MessagePack file."""
    kind = rng.randrange(6)
    unit = rng.choice(PACKED_UNITS)
    count = size // len(unit)
    if kind == 0:
        data = b"\xc6" + struct.pack(">I", size) + bytes(size)
        item = b"\x83\xa5bytes" + data + b"\xa5shape" + msgpack.packb([size]) + b"\xa5dtype\xa2U8"
    elif kind == 1:
        unit = b"\xca" + struct.pack(">f", 1)
        item = b"\x82\xa5value\xdd" + struct.pack(">I", size // 5) + unit * (size // 5)
        item += b"\xa5shape" + msgpack.packb([size // 5])
    elif kind == 2:
        count = min(size // (6 + len(unit)), 2_000_000)
        pairs = b"".join(b"\xa6%06x" % index + unit for index in range(count))
        item = b"\xdf" + struct.pack(">I", count) + pairs
    elif kind == 3:
        item = b"\xdb" + struct.pack(">I", size) + b"a" * size
    else:
        item = b"\xdd" + struct.pack(">I", count) + unit * count
    return b"\x83\xa8metadata" + msgpack.packb(FULL) + b"\xa4item" + item + b"\xa2_b\x90"


def text(rng, size):
    """Return a JSON file."""
    kind = rng.randrange(7)
    unit = rng.choice(TEXT_UNITS)
    count = max(size // (len(unit) + 1), 1)
    if kind == 0:
        count = size // 2
        item = b'{"bytes":[' + b"0," * (count - 1) + b'0],"shape":[%d],"dtype":"U8"}' % count
    elif kind == 1:
        count = size // 4
        item = b'{"value":[' + b"1.5," * (count - 1) + b'1.5],"shape":[%d]}' % count
    elif kind == 2:
        count = min(size // (10 + len(unit)), 2_000_000)
        item = b"{" + b",".join(b'"%06x":' % index + unit for index in range(count)) + b"}"
    elif kind == 3:
        item = rng.choice(
            [b'"' + b"a" * size + b'"', b" " * size + b"0", b"1" * size, b'"' + b"\\n" * (size // 2) + b'"']
        )
    else:
        item = b"[" + (unit + b",") * (count - 1) + unit + b"]"
    return b'{"metadata":' + json.dumps(FULL).encode() + b',"item":' + item + b',"_b":null}'


def safetensors(rng, size):
    """Return a safetensors file: many names, long texts, a large skeleton."""
    kind = rng.randrange(6)
    data = b""
    if kind == 0:
        header = b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
        data = bytes(size)
    elif kind == 1:
        name = rng.choice(["%x", "a." * 100 + "%x", "%x.a.a.a.a.a.a.a", "%x" + ".b" * 60])
        entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        count = max(size // (len(name) + len(entry)), 1)
        header = json.dumps({name % index: 0 for index in range(count)}).replace(" 0", entry).encode()
    elif kind == 2:
        header = json.dumps({"__metadata__": {f"{index:x}": "" for index in range(size // 12)}}).encode()
    elif kind == 3:
        unit = rng.choice(TEXT_UNITS).decode()
        item = "[" + ",".join([unit] * max(size // (len(unit) + 1), 1)) + "]"
        header = json.dumps({"__metadata__": {"burn": f'{{"metadata":null,"item":{item}}}'}}).encode()
    elif kind == 4:
        unit = rng.choice(TEXT_UNITS)
        header = b'{"a":[' + b",".join([unit] * max(size // (len(unit) + 1), 1)) + b"]}"
    else:
        header = b"{" + b" " * size + b"}"
    return struct.pack("<Q", len(header)) + header + data


def burnpack(rng, size):
    """Return a burnpack file: many tensors, scalars or texts."""
    kind = rng.randrange(5)
    entry = b"\xa3\x65dtype\x63F32\x65shape\x81\x00\x6cdata_offsets\x82\x00\x00"
    if kind == 0:
        count = max(size // (len(entry) + 8), 1)
        body = b"".join(b"\x66%06x" % index + entry for index in range(count))
        header = b"\xa1\x67tensors\xba" + struct.pack(">I", count) + body
    elif kind == 1:
        name = b".a" * rng.choice((1, 5, 60))
        head = b"\x78" + bytes([6 + len(name)])
        count = max(size // (len(name) + 16), 1)
        body = b"".join(head + b"%06x" % index + name + b"\xa1\x64UInt\x00" for index in range(count))
        header = b"\xa2\x67tensors\xa0\x67scalars\xba" + struct.pack(">I", count) + body
    elif kind == 2:
        count = max(size // 8, 1)
        body = b"".join(b"\x66%06x\x60" % index for index in range(count))
        header = b"\xa2\x67tensors\xa0\x68metadata\xba" + struct.pack(">I", count) + body
    elif kind == 3:
        unit = rng.choice([b"\x00", b"\x80", b"\xa0", b"\x60", b"\x81" * 50 + b"\x00", b"\xf6"])
        count = max(size // len(unit), 1)
        header = b"\xa2\x67tensors\xa0\x64more\x9a" + struct.pack(">I", count) + unit * count
    else:
        place = b"\xa3\x65dtype\x62U8\x65shape\x81\x1a%b\x6cdata_offsets\x82\x00\x1a%b"
        header = b"\xa1\x67tensors\xa1\x61a" + place % (struct.pack(">I", size), struct.pack(">I", size))
        start = b"NRUB\x01\x00" + struct.pack("<I", len(header)) + header
        return start + bytes(-len(start) % 256) + bytes(size)
    start = b"NRUB\x01\x00" + struct.pack("<I", len(header)) + header
    return start + bytes(-len(start) % 256)


def bincode(rng, size):
    """Return a bincode file and its example: long vectors, maps, texts, tensors."""
    texts = b"".join(
        bytes([len(one.encode())]) + one.encode() for one in (FULL | {"version": "0.20.0"}).values()
    )
    kind = rng.randrange(6)
    shape = b"\xfc" + struct.pack("<I", size)
    if kind == 0:
        return texts + shape + bytes(size) + b"\x01" + shape + b"\x0c", tensor("U8", 1)
    if kind == 1:
        count = min(size // 8, 99_999)
        pairs = b"".join(b"\x06%06x\x00" % index for index in range(count))
        return texts + b"\xfc" + struct.pack("<I", count) + pairs, Map({"a": None})
    if kind == 2:
        return texts + shape + b"a" * size, rng.choice(["", b""])
    if kind == 3:  # a tensor of nothing, many times
        unit = b"\x00\x01\x00\x01"
        count = min(size // len(unit), 99_999)
        return texts + b"\xfc" + struct.pack("<I", count) + unit * count, [tensor("F32", 0)]
    if kind == 4:  # vectors of vectors
        inner = b"\xfb" + struct.pack("<H", 60_000) + bytes(60_000)
        count = max(size // len(inner), 1)
        return texts + b"\xfc" + struct.pack("<I", count) + inner * count, [
            [rng.choice([None, 0, "", {}, ()])]
        ]
    old = texts.replace(b"0.20.0", b"0.13.0")
    count = size // 4
    numbers = b"\xfc" + struct.pack("<I", count)
    return old + numbers + bytes(4 * count) + b"\x01" + numbers, tensor("F32", 1)


def as_gzip(rng, payload, *, honest=False):
    """Return *payload* as a gzip member, sometimes with a name or comment, or with a false trailer."""
    packer = isal_zlib.compressobj(rng.choice((0, 1, 2)), isal_zlib.DEFLATED, -15)
    body = packer.compress(payload) + packer.flush()
    flags = 0 if honest else rng.choice((0, 0, 0, 8, 16, 2, 4, 31, 0xE0))
    header = b"\x1f\x8b\x08" + bytes([flags]) + b"\x00" * 6
    header += b"\x03\x00abc" if flags & 4 else b""
    header += b"name\x00" if flags & 8 else b""
    header += b"comment\x00" if flags & 16 else b""
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF) if flags & 2 else b""
    crc, size = zlib.crc32(payload), len(payload)
    if not honest and rng.random() < 0.1:
        crc, size = rng.choice([(crc ^ 1, size), (crc, size + 1), (crc, 0), (crc, 2**32 - 1)])
    return header + body + struct.pack("<II", crc, size & 0xFFFFFFFF)


MAKERS = {
    "named_mpk": packed,
    "named_mpk_gz": packed,
    "pretty_json": text,
    "json_gz": text,
    "safetensors": safetensors,
    "burnpack": burnpack,
}
