"""Records of Burn's schedules, in the layout of 0.21 and that of 0.22."""

import pytest

from stages.contracts.errors import RecordError
from stages.optim import (
    Composed,
    Constant,
    Cosine,
    Exponential,
    Linear,
    Noam,
    Scheduler,
    Sequential,
    Step,
    load_burn_schedule,
)
from stages.records.burn_layouts import to_021, to_022
from stages.records.record_tree import strip_type_hints

PARTS = (Exponential(initial=0.01, gamma=0.97), Step(initial=0.01, step_size=7), Constant(initial=0.1))
RECORDS = {  # schedule, initial rate, steps, records of Burn after them
    "constant": (Constant(), 0.01, 0, [None, {}]),
    "linear": (Linear(final=0.001, num_iters=60), 0.01, 40, [21, [{"remaining_iters": 21}]]),
    "linear at its end": (Linear(final=0.001, num_iters=60), 0.01, 61, [0, {"0": {"remaining_iters": 0}}]),
    "cosine": (Cosine(num_iters=150), 0.01, 40, [39, [{"current_iter": 39}]]),
    "new cosine": (Cosine(num_iters=150), 0.01, 0, [2**64 - 1, [{"current_iter": 2**64 - 1}]]),
    "exponential": (Exponential(gamma=0.97), 0.01, 40, [0.01 * 0.97**39, [{"previous_lr": 0.01 * 0.97**39}]]),
    "new exponential": (Exponential(gamma=0.97), 0.01, 0, [0.01 / 0.97]),
    "noam": (Noam(warmup_steps=30, model_size=64), 0.5, 40, [40, [{"step": 40.0}]]),
    "step": (Step(step_size=7, gamma=0.5), 0.01, 40, [39, [{"iter_idx": 39}]]),
    "new step": (Step(step_size=7, gamma=0.5), 0.01, 0, [-1, [{"iter_idx": -1}]]),
    "composed": (
        Composed(schedulers=PARTS, reduction="avg"),
        0.01,
        40,
        [
            {"schedulers": [{"Exponential": 0.01 * 0.97**39}, {"Step": 39}, {"Constant": None}]},
            [[{"previous_lr": 0.01 * 0.97**39}, {"iter_idx": 39}]],
            {"0": {"1": {"iter_idx": 39}, "0": {"previous_lr": 0.01 * 0.97**39}}},
        ],
    ),
    "sequential": (
        Sequential(schedulers=(Linear(initial=1e-5, final=0.01, num_iters=20), *PARTS[:1]), milestones=(20,)),
        0.01,
        40,
        [[{"step": 40, "0": {"remaining_iters": 0}, "1": {"previous_lr": 0.005}}]],
    ),
}


@pytest.mark.parametrize(("rule", "initial", "steps", "records"), RECORDS.values(), ids=RECORDS)
def test_schedule_continues_after_the_steps_of_burns_record(rule, initial, steps, records):
    state = rule.burn_state(initial, steps)
    for record in [*records, strip_type_hints(to_021(state)), to_022(state)[0]]:
        scheduler = Scheduler(initial, rule)

        load_burn_schedule(scheduler, record)

        assert scheduler.iteration == steps


class Own:
    per = "batch"

    def rate(self, initial, iteration):
        return initial


REFUSED = {
    "another schedule": (Linear(final=0.001, num_iters=60), [{"current_iter": 3}], "no state of a Linear"),
    "nothing": (Linear(final=0.001, num_iters=60), None, "no state of a Linear"),
    "text": (Cosine(num_iters=3), "x", "no state of a Cosine"),
    "schedule of the user": (Own(), 3, "Burn has no such schedule: Own"),
    "per epoch": (Step(step_size=3, per="epoch"), 3, "Burn has no such schedule: Step"),
}


@pytest.mark.parametrize(("rule", "record", "message"), REFUSED.values(), ids=REFUSED)
def test_record_that_does_not_fit_is_refused(rule, record, message):
    scheduler = Scheduler(0.01, rule)

    with pytest.raises(RecordError, match=message):
        load_burn_schedule(scheduler, record)

    assert scheduler.iteration == 0
