"""Mutations of complete files; a case depends only on (seed, index), so that it can be reproduced."""

import random
import re
import struct
from dataclasses import dataclass

from fuzz_bombs import as_gzip, bomb
from fuzz_seeds import length_fields, seeds

SEEDS = seeds()
BY_FORM = {
    name: [one for one in SEEDS if one.form.name == name]
    for name in dict.fromkeys(s.form.name for s in SEEDS)
}
LENGTHS = list(length_fields())
NUMBERS = [
    b"-1",
    b"0",
    b"1e400",
    b"9" * 20,
    str(2**63).encode(),
    str(2**64).encode(),
    b"9" * 5000,
    b"NaN",
    b"null",
]
OPENINGS = [
    b"\x91",
    b"\x81\xa1a",
    b"[",
    b'{"a":',
    b"\x81\x61a",
    b"\xdd\x00\x00\x00\x01",
    b"\x9f",
    b"\xc7\x01\x00",
]
UNITS = [
    *(b"\x00", b"\xc0", b"\x80", b"\x90", b"\xa0", b"\xa1a", b"\x93\x01\x02\x03", b"\xcb" + b"\x01" * 8),
    *(b"0,", b"[],", b"{},", b'"",', b" ", b"1", b"[1.5,2.5],", b'{"a":0},', b"\\u0000", b"\xa1\x61a\x00"),
]
"""Fillers that encode much structure in few bytes."""
LARGE = 1 << 20
HUGE = 100 << 20
LARGE_EVERY = 400
"""One of this many cases is large."""


@dataclass(frozen=True)
class Case:
    """One file of the fuzzer."""

    form: object
    like: object
    data: bytes


def case(seed, index, large_every=LARGE_EVERY):
    """Return file *index* of the series *seed*; one of *large_every* is large."""
    rng = random.Random(f"{seed}-{index}")  # noqa: S311  no secret
    chosen = rng.choice(BY_FORM[rng.choice(list(BY_FORM))])
    if rng.randrange(large_every) == 0:
        return large(rng, chosen)
    gzipped = chosen.form.gzipped
    data = _gzipped(rng, chosen.payload) if gzipped else mutated(rng, chosen.payload)
    return Case(chosen.form, chosen.like, data)


def large(rng, chosen):
    """Return a file with much structure: correct, with a false length, or mutated."""
    gzipped = chosen.form.gzipped
    size = int(LARGE * (HUGE / LARGE) ** rng.random()) if gzipped else rng.randrange(LARGE, 4 * LARGE)
    if rng.random() < 0.3:
        payload, like = blown_up(rng, chosen.payload, size), chosen.like
    else:
        payload, like = bomb(rng, chosen.form, size)
        if rng.random() < 0.3:
            payload = mutated(rng, payload) if len(payload) < 8 * LARGE else flip(rng, payload)
    return Case(chosen.form, like, as_gzip(rng, payload) if gzipped else payload)


def _gzipped(rng, payload):
    kind = rng.randrange(4)
    if kind == 0:  # the gzip stream itself
        return mutated(rng, as_gzip(rng, payload, honest=True))
    data = as_gzip(rng, mutated(rng, payload))
    if kind == 1:  # bytes, or a second member, behind it
        data += rng.choice([b"\x00", b"junk", data, as_gzip(rng, b"")])
    return data


def mutated(rng, data):
    """Return *data* after one to about six mutations."""
    while True:
        data = rng.choice(MUTATIONS)(rng, data)
        if rng.random() < 0.55:
            return data


def flip(rng, data):
    return _with(
        data,
        position := rng.randrange(max(len(data), 1)),
        bytes([_at(data, position) ^ 1 << rng.randrange(8)]),
    )


def change(rng, data):
    new = bytes(
        rng.choice((0, 1, 127, 128, 255, rng.randrange(256))) for _ in range(rng.choice((1, 1, 2, 4)))
    )
    return _with(data, rng.randrange(max(len(data), 1)), new)


def cut(rng, data):
    return data[: rng.randrange(len(data) + 1)]


def behead(rng, data):
    return data[rng.randrange(min(len(data), 16) + 1) :]


def extend(rng, data):
    return data + rng.randbytes(rng.choice((1, 2, 300)))


def splice(rng, data):
    other = rng.choice(SEEDS).payload
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def repeat(rng, data):
    start, end = _range(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def delete(rng, data):
    start, end = _range(rng, data)
    return data[:start] + data[end:]


def move(rng, data):
    start, end = _range(rng, data)
    rest = data[:start] + data[end:]
    to = rng.randrange(len(rest) + 1)
    return rest[:to] + data[start:end] + rest[to:]


def length(rng, data):
    new = rng.choice(LENGTHS)
    position = rng.randrange(min(len(data), rng.choice((12, 400, 1 << 20))) + 1)
    if rng.random() < 0.5:
        return _with(data, position, new)
    return data[:position] + new + data[position + rng.choice((0, 1)) :]


def digits(rng, data):
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return length(rng, data)
    match = rng.choice(found)
    new = rng.choice([*NUMBERS, str(int(match[0][:18]) + rng.choice((-1, 1, 256))).encode()])
    return data[: match.start()] + new + data[match.end() :]


def word(rng, data):
    """Replace a text by another text of the file or by a dangerous one."""
    found = list(re.finditer(rb"[A-Za-z_0-9]{2,20}", data))
    if not found:
        return change(rng, data)
    match, other = (
        rng.choice(found),
        rng.choice([rng.choice(found)[0], b"..", b"\x00", b"a/../b", b"QFloat", b"\xff"]),
    )
    new = other[: len(match[0])].ljust(len(match[0]), b"_") if rng.random() < 0.6 else other
    return data[: match.start()] + new + data[match.end() :]


def nest(rng, data):
    position = rng.randrange(len(data) + 1)
    opening = rng.choice(OPENINGS) * rng.choice((100, 127, 128, 129, 1000, 100_000))
    return data[:position] + opening + data[position:]


MUTATIONS = (
    flip,
    flip,
    change,
    change,
    cut,
    behead,
    extend,
    splice,
    repeat,
    delete,
    move,
    length,
    length,
    digits,
    word,
    nest,
)


def blown_up(rng, data, size):
    """Return *data* with a repeated filler, preceded by a correct, false or missing length."""
    unit = rng.choice(UNITS)
    count = size // len(unit)
    declared = rng.choice((count, count, size, 2**31, 2**32 - 1))
    before = rng.choice(
        [
            *(
                b"",
                b"[",
                b'{"a":[',
                b"\xdd" + struct.pack(">I", declared),
                b"\xdf" + struct.pack(">I", declared),
            ),
            *(b"\xc6" + struct.pack(">I", declared), b"\xdb" + struct.pack(">I", declared)),
            *(b"\x9a" + struct.pack(">I", declared), struct.pack("<BI", 252, declared)),
        ]
    )
    start = rng.choice(
        [0, rng.randrange(len(data)), *(match.end() for match in re.finditer(rb"item.|\[", data))]
    )
    return data[:start] + before + unit * count + data[start:]


def _at(data, position):
    return data[position] if data else 0


def _with(data, position, new):
    return data[:position] + new + data[position + len(new) :]


def _range(rng, data):
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 64, 500)))
