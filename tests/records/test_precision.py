"""Precision: one rounding as IEEE 754 defines it, in pieces, and no loss if a number does not fit."""

import math
import struct

import numpy as np
import pytest

from stages.records.precision import (
    PIECE_SIZE,
    DoublePrecision,
    FullPrecision,
    HalfPrecision,
    OriginalPrecision,
    Precision,
)
from stages.records.record_tree import RawTensor

COUNT = 376_952
LAYOUTS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "U8": "u1",
    "U64": "<u8",
}


def raw(values, dtype):
    array = np.array(values, LAYOUTS[dtype], order="C")
    return RawTensor.of(dtype, array.shape, array.reshape(-1))


def values(tensor):
    return np.frombuffer(tensor.data(), LAYOUTS[tensor.dtype]).reshape(tensor.shape)


def floats_of_every_kind():
    """Any 32 bits: all exponents, subnormals, infinities and NaN; and every tie between two halves."""
    random = np.random.default_rng(7)
    bits = random.integers(0, 1 << 32, COUNT, np.uint64).astype(np.uint32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    near = (random.standard_normal(COUNT // 2) * 10.0 ** random.uniform(-9, 6, COUNT // 2)).astype(np.float32)
    numbers = bits.view(np.float32).copy()
    numbers[: len(ties)], numbers[len(ties) : 2 * len(ties)] = ties, -ties
    numbers[2 * len(ties) : 2 * len(ties) + len(near)] = near
    return numbers


def test_half_precision_equals_numpy_bit_for_bit():
    numbers = floats_of_every_kind()
    with np.errstate(all="ignore"):
        expected = numbers.astype(np.float16)

    tensor = HalfPrecision.convert(raw(numbers, "F32"))

    assert tensor.dtype == "F16"
    assert np.array_equal(values(tensor).view(np.uint16), expected.view(np.uint16))


def test_half_precision_rounds_to_nearest_ties_to_even():
    """Against the standard library, whose ``e`` is IEEE's rounding written a third time."""
    numbers = floats_of_every_kind()[::17]

    halves = values(HalfPrecision.convert(raw(numbers, "F32"))).view(np.uint16)

    for number, half in zip(numbers.tolist(), halves.tolist(), strict=True):
        if math.isnan(number):
            assert half & 0x7C00 == 0x7C00
            assert half & 0x3FF
        elif abs(number) >= 65520:
            assert half == (0x7C00 if number > 0 else 0xFC00)
        else:
            assert struct.pack("<e", number) == half.to_bytes(2, "little")


def test_double_is_rounded_to_half_once():
    """Through a float, 1 + 2**-11 + 2**-30 would become a tie first, and then 1."""
    number = 1 + 2.0**-11 + 2.0**-30

    assert values(HalfPrecision.convert(raw([number], "F64")))[0] == np.float16(1 + 2.0**-10)
    assert np.float16(np.float32(number)) == 1


@pytest.mark.parametrize("target", ["F64", "F32", "F16"])
def test_bf16_is_converted_by_value(target):
    import torch

    numbers = torch.randn(3, 5).to(torch.bfloat16)
    tensor = RawTensor.of("BF16", (3, 5), numbers.view(torch.uint8).numpy())
    precision = Precision("", "", "", target, "I32")

    converted = precision.convert(tensor)

    assert np.array_equal(values(converted), numbers.double().numpy().astype(LAYOUTS[target]))


@pytest.mark.parametrize("cut", [1, 3, 7, 4096, 999_999])
def test_piece_boundaries_do_not_affect_values(cut):
    numbers = floats_of_every_kind()[:50_000]
    data = memoryview(numbers).cast("B")
    cuts = sorted({0, cut, cut + 1, cut + 2, cut + 2, len(data)} & set(range(len(data) + 1)))
    parts = [data[a:b] for a, b in zip(cuts, [*cuts[1:], len(data)], strict=True)]

    split = HalfPrecision.convert(RawTensor("F32", (50_000,), lambda: [*parts, memoryview(b"")]))

    assert split.data() == HalfPrecision.convert(raw(numbers, "F32")).data()


def test_tensor_is_converted_in_small_pieces_on_each_request():
    numbers = np.ones(3_000_000, np.float32)

    tensor = DoublePrecision.convert(raw(numbers, "F32"))

    assert [len(piece) for piece in tensor.pieces()] == [len(piece) for piece in tensor.pieces()]
    assert max(len(piece) for piece in tensor.pieces()) <= PIECE_SIZE
    assert sum(len(piece) for piece in tensor.pieces()) == tensor.nbytes
    assert np.array_equal(values(tensor), numbers)


@pytest.mark.parametrize(
    ("precision", "dtype", "numbers", "expected"),
    [
        (HalfPrecision, "I64", [-32768, 32767], "I16"),
        (HalfPrecision, "I64", [32768], "I64"),
        (HalfPrecision, "U8", [255], "I16"),
        (HalfPrecision, "I32", [], "I16"),
        (FullPrecision, "I64", [2**31 - 1], "I32"),
        (FullPrecision, "I64", [2**31, 0], "I64"),
        (FullPrecision, "I16", [7], "I32"),
        (DoublePrecision, "U64", [2**63], "U64"),
        (DoublePrecision, "U64", [2**63 - 1], "I64"),
    ],
)
def test_integers_keep_their_type_if_one_does_not_fit(precision, dtype, numbers, expected):
    tensor = precision.convert(raw(numbers, dtype))

    assert tensor.dtype == expected
    assert values(tensor).tolist() == numbers


def test_matching_tensors_and_bools_are_unchanged():
    floats, bools = raw([1.0], "F32"), RawTensor.of("Bool", (1,), b"\x01")
    long = raw([2**40], "I64")

    assert FullPrecision.convert(floats) is floats
    assert HalfPrecision.convert(bools) is bools
    assert OriginalPrecision.convert(long) is long
    assert OriginalPrecision.convert(half := raw([1.0], "F16")) is half


def test_empty_and_scalar_tensors_are_converted():
    empty, scalar = np.empty((0, 3), np.float32), np.float32(1.5)

    assert HalfPrecision.convert(raw(empty, "F32")).data() == b""
    assert values(HalfPrecision.convert(raw(scalar, "F32"))).shape == ()
