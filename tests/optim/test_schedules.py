"""Learning rates at each step, and the state that Burn would save."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from stages.contracts.errors import CheckpointError, ParamsError
from stages.optim import (
    Composed,
    Constant,
    Cosine,
    Exponential,
    Linear,
    Noam,
    ScheduleConfig,
    Scheduler,
    Sequential,
    Step,
    as_scheduler,
)
from stages.optim.schedules import with_restarts
from stages.records import to_021
from stages.records.record_tree import strip_type_hints

LINEAR = Linear(final=0.1, num_iters=400)
COSINE = Cosine(min=0.1, num_iters=400)
WARM = Linear(initial=0.01, final=1.0, num_iters=100)
RULES = [
    (Constant(), lambda i: 0.5),
    (Constant(initial=0.25), lambda i: 0.25),
    (LINEAR, lambda i: 0.5 - 0.4 * min(i, 400) / 400),
    (COSINE, lambda i: 0.1 + 0.2 * (1 + math.cos(math.pi * i / 400))),
    (Exponential(gamma=0.99), lambda i: 0.5 * 0.99**i),
    (Noam(warmup_steps=300, model_size=64), lambda i: 0.5 / 8 * min((i + 1) ** -0.5, (i + 1) * 300**-1.5)),
    (Step(step_size=30, gamma=0.9), lambda i: 0.5 * 0.9 ** (i // 30)),
    (Composed(schedulers=(WARM, COSINE)), lambda i: WARM.rate(9, i) * COSINE.rate(0.5, i)),
    (Composed(schedulers=(WARM, COSINE), reduction="sum"), lambda i: WARM.rate(9, i) + COSINE.rate(0.5, i)),
    (
        Composed(schedulers=(LINEAR, COSINE), reduction="avg"),
        lambda i: (LINEAR.rate(0.5, i) + COSINE.rate(0.5, i)) / 2,
    ),
    (
        Sequential(schedulers=(WARM, LINEAR, COSINE), milestones=(100, 250)),
        lambda i: (
            WARM.rate(9, i)
            if i < 100
            else LINEAR.rate(0.5, i - 100)
            if i < 250
            else COSINE.rate(0.5, i - 250)
        ),
    ),
]
KINDS = [f"{type(rule).__name__}-{number}" for number, (rule, _) in enumerate(RULES)]


@pytest.mark.parametrize(("schedule", "closed_form"), RULES, ids=KINDS)
def test_schedule_equals_its_closed_form_for_a_thousand_steps(schedule, closed_form):
    scheduler = Scheduler(0.5, schedule)

    rates = [scheduler.step() for _ in range(1000)]

    assert rates == pytest.approx([closed_form(i) for i in range(1000)], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    "rule", [COSINE, Composed(schedulers=(COSINE,)), Sequential(schedulers=(COSINE,), milestones=())]
)
def test_cosine_of_021_restarts_in_any_schedule(rule):
    scheduler = Scheduler(0.5, rule)
    scheduler.follow("0.21", accumulates=False)

    rates = [scheduler.step() for _ in range(1000)]

    assert rates == pytest.approx([COSINE.rate(0.5, i % 401) for i in range(1000)], rel=1e-12)


@pytest.mark.parametrize(("schedule", "start"), [(LINEAR, 0.25), (Constant(initial=0.75), 0.75)])
def test_schedule_is_accepted_as_a_learning_rate(schedule, start):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.25)

    assert as_scheduler(optimizer, schedule).step() == pytest.approx(start)


def test_exponential_schedule_equals_burns_repeated_product():
    scheduler, product = Scheduler(0.5, Exponential(gamma=0.99)), 0.5 / 0.99

    for _ in range(1000):
        product *= 0.99

        assert scheduler.step() == pytest.approx(product, rel=1e-12)


NEVER = 2**64 - 1


@pytest.mark.parametrize(
    ("schedule", "before", "after_1", "after_5"),
    [
        (Constant(), None, None, None),
        (Linear(final=0.1, num_iters=3), 4, 3, 0),
        (Cosine(num_iters=3), NEVER, 0, 4),
        (with_restarts(Cosine(num_iters=3)), NEVER, 0, 0),
        (Cosine(num_iters=9), NEVER, 0, 4),
        (Exponential(gamma=0.5), 1.0, 0.5, 0.03125),
        (Noam(), 0, 1, 5),
        (Step(step_size=3), -1, 0, 4),
        (
            Composed(schedulers=(Linear(final=0.1, num_iters=9), Exponential(initial=1.0, gamma=0.5))),
            {"schedulers": [{"Linear": 10}, {"Exponential": 2.0}]},
            {"schedulers": [{"Linear": 9}, {"Exponential": 1.0}]},
            {"schedulers": [{"Linear": 5}, {"Exponential": 0.0625}]},
        ),
        (
            Sequential(schedulers=(Linear(final=0.1, num_iters=9), Noam(), Noam()), milestones=(3, 7)),
            {"step": 0, "0": 10, "1": 0, "2": 0},
            {"step": 1, "0": 9, "1": 0, "2": 0},
            {"step": 5, "0": 7, "1": 2, "2": 0},
        ),
        (
            Sequential(schedulers=(Exponential(gamma=0.5), Exponential(gamma=0.5)), milestones=(3,)),
            {"step": 0, "0": 1.0, "1": 1.0},
            {"step": 1, "0": 0.5, "1": 1.0},
            {"step": 5, "0": 0.125, "1": 0.25},
        ),
    ],
)
def test_scheduler_returns_the_state_that_burn_would_save(schedule, before, after_1, after_5):
    scheduler, states = Scheduler(0.5, schedule), []
    for _ in range(6):
        states.append(strip_type_hints(to_021(scheduler.burn_state())))
        scheduler.step()

    assert (states[0], states[1], states[5]) == (before, after_1, after_5)


@pytest.mark.parametrize("schedule", [rule for rule, _ in RULES], ids=KINDS)
@given(st.integers(0, 600))
def test_scheduler_resumes_from_its_state(schedule, steps):
    walked, resumed = Scheduler(0.5, schedule), Scheduler(0.5, schedule)
    for _ in range(steps):
        walked.step()

    resumed.load_state_dict({"iteration": walked.state_dict()["iteration"]})

    assert resumed.state_dict() == walked.state_dict()
    assert resumed.step() == walked.step()


def test_state_of_another_object_is_rejected():
    with pytest.raises(CheckpointError, match="last_epoch"):
        Scheduler(0.5).load_state_dict({"last_epoch": 3})


def test_iteration_of_a_schedule_can_be_an_epoch():
    scheduler, rates = Scheduler(0.5, Step(step_size=1, gamma=0.1, per="epoch")), []
    for _ in range(3):
        rates.append([scheduler.step() for _ in range(2)])
        scheduler.end_epoch(0.7)

    assert rates == [pytest.approx([rate] * 2) for rate in (0.5, 0.05, 0.005)]
    assert scheduler.state_dict() == {"iteration": 3}


def test_end_of_an_epoch_does_not_advance_a_schedule_of_batches():
    scheduler = Scheduler(0.5, LINEAR)
    scheduler.end_epoch()

    assert scheduler.iteration == 0


def test_schedule_of_a_user_needs_only_the_method_rate():
    class Halving:
        def rate(self, initial, iteration):
            return initial / 2**iteration

    scheduler = Scheduler(1.0, Halving())

    assert [scheduler.step() for _ in range(3)] == [1.0, 0.5, 0.25]
    assert scheduler.burn_state() == 3


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_invalid_learning_rate_is_rejected(rate):
    with pytest.raises(ParamsError, match="learning rate must be finite and above 0"):
        Scheduler(rate)


def test_overflowing_rate_ends_the_run():
    scheduler = Scheduler(1.0, Step(step_size=1, gamma=1e200))
    assert scheduler.step() == 1.0
    scheduler.step()

    with pytest.raises(ParamsError, match="Step schedule gives a learning rate of inf at iteration 2. Lower"):
        scheduler.step()


@pytest.mark.parametrize(
    "schedule", [COSINE, Composed(schedulers=(COSINE,)), Sequential(schedulers=(COSINE,), milestones=())]
)
def test_cosine_with_a_minimum_above_its_start_is_rejected(schedule):
    with pytest.raises(ParamsError, match=r"starts at 0.05, which is below its min 0.1"):
        Scheduler(0.05, schedule)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "exponential", "gamma": 1.5}, "above 0 and of at most 1"),
        ({"kind": "linear", "final": 0.1, "num_iters": 0}, "an integer from 1 to"),
        ({"kind": "composed", "schedulers": []}, "at least 1"),
        (
            {"kind": "composed", "schedulers": [{"kind": "noam"}, {"kind": "noam"}]},
            "Set initial for all but one of them",
        ),
        (
            {"kind": "composed", "schedulers": [{"kind": "noam", "per": "epoch"}]},
            "Set it for the outer schedule instead",
        ),
        ({"kind": "sequential", "schedulers": [{"kind": "noam"}], "milestones": [3]}, "0 milestones"),
        (
            {"kind": "sequential", "schedulers": [{"kind": "noam"}] * 3, "milestones": [3, 3]},
            "must be in ascending order",
        ),
        ({"kind": "cosin", "num_iters": 3}, "no schedule is named .cosin.. Did you mean .cosine."),
    ],
)
def test_invalid_schedule_config_is_rejected(section, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(ScheduleConfig).validate_python(section)


@pytest.mark.parametrize("schedule", [rule for rule, _ in RULES], ids=KINDS)
def test_schedule_config_survives_a_json_round_trip(schedule):
    adapter = TypeAdapter(ScheduleConfig)

    assert adapter.validate_json(schedule.model_dump_json()) == schedule


def test_rates_after_a_resume_are_those_of_an_uninterrupted_run():
    uninterrupted, resumed = Scheduler(0.5, COSINE), Scheduler(0.5, COSINE)
    rates = [uninterrupted.step() for _ in range(200)]

    resumed.step()
    resumed.load_state_dict({"iteration": 100})

    assert [resumed.step() for _ in range(100)] == rates[100:]


def test_schedule_of_a_user_is_called_once_for_each_step():
    iterations = []

    class Recording:
        def rate(self, initial, iteration):
            iterations.append(iteration)
            return initial

    scheduler = Scheduler(0.5, Recording())

    assert [scheduler.step() for _ in range(3)] == [0.5] * 3
    assert iterations == [0, 1, 2]
