"""The finished share and the remaining time of a run."""

import pytest

from stages.contracts.events import Progress
from stages.contracts.history import Split
from stages.renderers.scene import (
    Reading,
    RemainingTime,
    compute_run_share,
    count_run_iterations,
    format_largest_unit,
    format_remaining_time,
)


@pytest.mark.parametrize(
    ("elapsed", "share", "iterations", "text"),
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
def test_remaining_time_is_estimated_after_a_warm_up(elapsed, share, iterations, text):
    assert format_remaining_time(Reading(0.0, 0.0), Reading(elapsed, share), iterations) == text


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
def test_time_is_formatted_in_its_largest_unit(seconds, text):
    assert format_largest_unit(seconds) == text


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
def test_share_of_a_run_counts_training_since_its_first_epoch(progress, share, iterations):
    assert compute_run_share(progress) == pytest.approx(share)
    assert count_run_iterations(progress) >= min(iterations, 10)


def test_remaining_time_of_a_split_counts_from_its_start():
    remaining, progress = RemainingTime(), Progress(2, epoch=1, batch=0, batches=100)
    remaining.estimate(progress, 0.0)

    progress.batch = 50
    assert remaining.estimate(progress, 20.0) == ("20 secs", "1 min")
    progress.split, progress.batch = Split.VALID, 10
    assert remaining.estimate(progress, 40.0) == ("---", "40 secs")


def test_remaining_time_of_a_resumed_run_has_the_speed_of_this_process():
    """A run that resumes after 90 of 100 batches has trained 5 of them in 20 seconds, and 5 remain."""
    remaining, progress = RemainingTime(), Progress(2, epoch=0)
    remaining.estimate(progress, 0.0)

    progress.epoch, progress.batch, progress.batches = 1, 90, 100
    remaining.estimate(progress, 0.0)
    progress.batch = 95

    assert remaining.estimate(progress, 20.0) == ("20 secs", "7 mins")
