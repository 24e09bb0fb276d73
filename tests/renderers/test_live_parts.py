"""The parts of the live view, each by itself."""

import math
from collections import Counter

import pytest
from rich.cells import cell_len
from rich.text import Text

from stages.contracts.events import Progress, Shown
from stages.contracts.history import Split
from stages.renderers.chart import chart, labels
from stages.renderers.curves import FULL, RECENT, Curve, reduced
from stages.renderers.frame import Frames, plot_size
from stages.renderers.keyboard import Key, keys_in
from stages.renderers.panes import Scene, metrics_text
from stages.renderers.readings import Readings
from stages.renderers.remaining import Pace, largest_unit, run_iterations, run_share, time_left
from stages.renderers.selection import Selection, View


@pytest.mark.parametrize(
    ("elapsed", "share", "iterations", "left"),
    [
        (9.0, 0.5, 100, "---"),  # too soon
        (11.0, 0.5, 9, "---"),  # too few
        (11.0, 0.5, 10, "11 secs"),
        (31.0, 0.5, 1, "31 secs"),  # slow steps
        (60.0, 0.25, 10, "3 mins"),
        (60.0, 0.0, 10, "---"),
        (60.0, 1.0, 10, "0 secs"),
    ],
)
def test_the_time_left_is_told_after_a_warm_up(elapsed, share, iterations, left):
    assert time_left(elapsed, share, iterations) == left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "0 secs"),
        (1, "1 sec"),
        (59.9, "59 secs"),
        (60, "1 min"),
        (3599, "59 mins"),
        (7300, "2 hours"),
        (86400, "1 day"),
        (200000, "2 days"),
    ],
)
def test_a_time_is_told_in_its_largest_unit(seconds, text):
    assert largest_unit(seconds) == text


@pytest.mark.parametrize(
    ("progress", "share", "iterations"),
    [
        (Progress(10), 0.0, 0),
        (Progress(10, epoch=1, batch=5, batches=10), 0.05, 5),
        (Progress(10, epoch=1, split=Split.VALID, batch=1, batches=4), 0.1, 10),
        (Progress(10, first_epoch=6, epoch=6, batch=5, batches=10), 0.1, 5),
        (Progress(10, first_epoch=6, epoch=7, batch=5, batches=10), 0.3, 15),
        (Progress(10, first_epoch=11, epoch=10), 0.0, 0),
    ],
)
def test_the_share_of_a_run_counts_training_since_its_first_epoch(progress, share, iterations):
    assert run_share(progress) == pytest.approx(share)
    assert run_iterations(progress) >= min(iterations, 10)


def test_the_time_left_of_a_split_counts_from_its_beginning():
    pace, progress = Pace(0.0), Progress(2, epoch=1, batch=50, batches=100)
    pace.left(progress, 0.0)

    assert pace.left(progress, 20.0) == ("20 secs", "1 min")
    progress.split, progress.batch = Split.VALID, 10
    assert pace.left(progress, 40.0) == ("---", "40 secs")


@pytest.mark.parametrize("count", [3, FULL, FULL + 1, 10_000])
def test_reduced_points_keep_the_ends_and_the_extremes(count):
    points = [(number, math.sin(number)) for number in range(count)]
    points[count // 3] = (count // 3, 50.0)
    points[count // 2] = (count // 2, -50.0)

    kept = reduced(points, FULL)

    assert len(kept) <= FULL
    assert kept == sorted(kept)
    assert {points[0], points[-1], points[count // 3], points[count // 2]} <= set(kept)


def test_a_curve_of_any_length_takes_bounded_memory_and_forgets_no_extreme():
    curve = Curve()
    for number in range(1, 100_001):
        curve.add(Split.TRAIN, 9.0 if number == 777 else 1 / number)

    full = curve.full()[Split.TRAIN]

    assert len(full) <= FULL
    assert full[0] == (1, 1.0)
    assert (777, 9.0) in full
    assert full[-1] == (100_000, 1 / 100_000)
    assert max(Counter(10 * number // 100_001 for number, _ in full).values()) < 60  # spread over the run
    assert len(curve._full[Split.TRAIN]) <= 4 * FULL


def test_both_splits_share_one_axis_and_recent_is_the_end_of_it():
    curve = Curve()
    for split, count in ((Split.TRAIN, 1500), (Split.VALID, 300), (Split.TRAIN, 100)):
        for _ in range(count):
            curve.add(split, 0.5)
    curve.add(Split.TRAIN, math.nan)

    recent = curve.recent()

    assert len(curve) == 1901
    assert recent[Split.TRAIN][0][0] == 1901 - RECENT + 1
    assert recent[Split.TRAIN][-1][0] == 1900  # what is not finite leaves a gap
    assert (recent[Split.VALID][0][0], recent[Split.VALID][-1][0]) == (1501, 1800)


@pytest.mark.parametrize(
    ("typed", "keys", "rest"),
    [
        ("q", [Key.QUIT], ""),
        ("\x1b[D\x1bOC", [Key.LEFT, Key.RIGHT], ""),
        ("x\x1b[3~\x1b[1;5Aq", [Key.QUIT], ""),  # other keys
        ("ABCD", [], ""),
        ("s\x1b[", [Key.STOP], "\x1b["),
        ("\x1b", [], "\x1b"),
    ],
)
def test_keys_are_told_from_what_a_terminal_sends(typed, keys, rest):
    assert keys_in(typed) == (keys, rest)


@pytest.mark.parametrize(
    ("keys", "selection"),
    [
        ([Key.RIGHT], Selection(metric=1)),
        ([Key.LEFT], Selection(metric=2)),
        ([Key.RIGHT] * 3, Selection()),
        ([Key.DOWN], Selection(view=View.RECENT)),
        ([Key.UP], Selection(view=View.EPOCHS)),
        ([Key.QUIT], Selection(asking=True)),
        ([Key.QUIT, Key.RIGHT], Selection(metric=1, asking=True)),
        ([Key.QUIT, Key.CANCEL], Selection()),
        ([Key.STOP], Selection()),
    ],
)
def test_keys_change_the_selection(keys, selection):
    now = Selection()
    for key in keys:
        now = now.after(key, 3)

    assert now == selection


def test_the_split_that_rests_keeps_its_last_values():
    readings, values = Readings(), {"Loss": 1.0}
    progress = Progress(1, split=Split.TRAIN, running=lambda: values, latest=dict)
    readings.take(progress)
    values["Loss"] = 0.5  # the last batches of the split, which no frame was drawn for
    progress.split, progress.running, progress.latest = (
        Split.VALID,
        lambda: {"Loss": 2.0},
        lambda: {"Loss": 3.0},
    )
    readings.take(progress)

    train, valid = (readings.of(split, "Loss") for split in Split)

    assert (train.running, train.latest) == (0.5, None)
    assert (valid.running, valid.latest) == (2.0, 3.0)
    assert readings.of(Split.VALID, "Accuracy") is None


def scene(**changes):
    values = {"Accuracy": 97.254, "Loss": 0.0923, "长长的名字": 1234567.0}
    shown = {name: Shown(unit) for name, unit in zip(values, ["%", None, "iter/sec"], strict=True)}
    progress = Progress(10, epoch=3, batch=4, batches=8, items=256, shown=shown)
    progress.running = lambda: values
    progress.latest = lambda: values
    readings = Readings()
    readings.take(progress)
    parts = {"selection": Selection(), "chart": Text(), "has_keys": True, **changes}
    return Scene(progress=progress, readings=readings, curves=list(values), left=("---", "3 mins"), **parts)


def test_each_number_is_shown_as_burn_shows_it():
    text = metrics_text(scene(), 36, 20).plain.splitlines()

    assert text[:4] == [
        "Accuracy",
        "train epoch 97.25 % - batch 97.25 %",
        "Loss",
        "train epoch 9.23e-2 - batch 9.23e-2",
    ]
    assert text[5:] == ["train epoch 1234567.00 iter/sec", "      batch 1234567.00 iter/sec"]


def test_the_chosen_metric_is_among_those_that_fit():
    text = metrics_text(scene(selection=Selection(metric=2)), 36, 4).plain

    assert "长长的名字" in text
    assert len(text.splitlines()) <= 4


@pytest.mark.parametrize("asking", [False, True])
@pytest.mark.parametrize(
    "size", [(160, 48), (80, 24), (72, 18), (71, 18), (60, 12), (40, 12), (39, 11), (20, 4), (9, 2), (1, 1)]
)
def test_a_frame_is_exactly_as_large_as_the_terminal(size, asking):
    room = plot_size(size)
    drawn = chart({Split.TRAIN: [(1, 0.5), (9, 0.1)]}, *room) if room else Text()

    lines = Frames().draw(scene(chart=drawn, selection=Selection(asking=asking)), size)

    widths = [cell_len(Text.from_ansi(line).plain) for line in lines]
    assert widths == [size[0]] * size[1]


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
def test_any_values_make_a_chart_of_its_size_and_nothing_else(values, capfd):
    drawn = chart({Split.VALID: list(enumerate(values, 1))}, 36, 13)

    assert [cell_len(line) for line in drawn.plain.splitlines()] == [36] * 13
    assert capfd.readouterr() == ("", "")


def test_without_points_a_chart_says_so():
    assert chart({Split.TRAIN: []}, 36, 13).plain == "no points yet"


@pytest.mark.parametrize(
    ("steps", "texts"),
    [
        ([0.1, 0.2, 0.3], ["0.10", "0.20", "0.30"]),
        ([97.25, 97.5], ["97.25", "97.50"]),
        ([97.0000001, 97.0000002], ["9.7000000100e1", "9.7000000200e1"]),
        ([0, 25, 50], ["0", "25", "50"]),
        ([1e-9, 2e-9], ["1.00e-9", "2.00e-9"]),
    ],
)
def test_the_steps_of_an_axis_can_be_told_apart(steps, texts):
    assert labels(steps) == texts
