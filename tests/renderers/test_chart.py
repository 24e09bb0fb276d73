"""Curves in bounded memory, and their charts."""

import math
from collections import Counter

import pytest
from rich.cells import cell_len

from stages.contracts.history import Split
from stages.renderers.chart import MAX_POINTS, RECENT_POINTS, Curve, draw_chart, format_ticks, reduce_points


@pytest.mark.parametrize("count", [3, MAX_POINTS, MAX_POINTS + 1, 10_000])
def test_reduced_points_include_ends_and_extremes(count):
    points = [(number, math.sin(number)) for number in range(count)]
    points[count // 3] = (count // 3, 50.0)
    points[count // 2] = (count // 2, -50.0)

    kept = reduce_points(points, MAX_POINTS)

    assert len(kept) <= MAX_POINTS
    assert kept == sorted(kept)
    assert {points[0], points[-1], points[count // 3], points[count // 2]} <= set(kept)


def test_curve_of_any_length_has_bounded_memory_and_all_extremes():
    curve = Curve()
    for number in range(1, 100_001):
        curve.add(Split.TRAIN, 9.0 if number == 777 else 1 / number)

    full = curve.sample_all()[Split.TRAIN]

    assert len(full) <= MAX_POINTS
    assert full[0] == (1, 1.0)
    assert (777, 9.0) in full
    assert full[-1] == (100_000, 1 / 100_000)
    assert max(Counter(10 * number // 100_001 for number, _ in full).values()) < 60  # spread over the run
    assert len(curve._full[Split.TRAIN]) <= 4 * MAX_POINTS


def test_recent_points_are_the_last_of_both_splits_together():
    curve = Curve()
    for split, count in ((Split.TRAIN, 1500), (Split.VALID, 300), (Split.TRAIN, 100)):
        for _ in range(count):
            curve.add(split, 0.5)
    curve.add(Split.TRAIN, math.nan)

    recent = curve.sample_recent()

    assert len(curve) == 1901
    assert recent[Split.TRAIN][0][0] == 1901 - RECENT_POINTS + 1
    assert recent[Split.TRAIN][-1][0] == 1900  # a value that is not finite leaves a gap
    assert (recent[Split.VALID][0][0], recent[Split.VALID][-1][0]) == (1501, 1800)


@pytest.mark.parametrize(
    "values",
    [
        [0.5],
        [0.5, 0.5, 0.5],
        [1e308, -1e308, 0.0],
        [1.7e308, 1.7e308],
        [5e-324, 0.0],
        [1e16, 1e16 + 2],
        [0.1, 0.1 + 1e-17],
        [-3.0, 2e-9],
    ],
)
def test_chart_has_its_size_for_any_values_and_prints_nothing(values, capfd):
    drawn = draw_chart({Split.VALID: list(enumerate(values, 1))}, 36, 13)

    assert [cell_len(line) for line in drawn.plain.splitlines()] == [36] * 13
    assert capfd.readouterr() == ("", "")


def test_chart_without_points_is_a_notice():
    assert draw_chart({Split.TRAIN: []}, 36, 13).plain == "no points yet"


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0.1, 0.2, 0.3], ["0.10", "0.20", "0.30"]),
        ([97.25, 97.5], ["97.25", "97.50"]),
        ([97.0000001, 97.0000002], ["9.7000000100e1", "9.7000000200e1"]),
        ([0, 25, 50], ["0", "25", "50"]),
        ([1e-9, 2e-9], ["1.00e-9", "2.00e-9"]),
    ],
)
def test_tick_labels_are_distinct(ticks, labels):
    assert format_ticks(ticks) == labels
