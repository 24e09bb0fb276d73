"""Learning rates, step for step."""

import math

import pytest

from stages.contracts.errors import CheckpointError
from stages.optim import Constant, Cosine, Linear, Scheduler


@pytest.mark.parametrize(
    ("schedule", "closed_form"),
    [
        (Constant(), lambda i: 0.5),
        (Linear(kind="linear", final=0.1, num_iters=400), lambda i: 0.5 - 0.4 * min(i, 400) / 400),
        (
            Cosine(kind="cosine", min=0.1, num_iters=400),
            lambda i: 0.1 + 0.2 * (1 + math.cos(math.pi * (i % 401) / 400)),
        ),
    ],
)
def test_a_schedule_is_its_closed_form_for_a_thousand_steps(schedule, closed_form):
    scheduler = Scheduler(0.5, schedule)

    assert [scheduler.step() for _ in range(1000)] == pytest.approx([closed_form(i) for i in range(1000)])


def test_a_scheduler_goes_on_from_its_state():
    walked, resumed = (Scheduler(0.5, Linear(kind="linear", final=0, num_iters=9)) for _ in "ab")
    for _ in range(4):
        walked.step()

    resumed.load_state_dict(walked.state_dict())

    assert resumed.step() == walked.step()
    with pytest.raises(CheckpointError):
        resumed.load_state_dict({"last_epoch": 3})
