"""A schedule that is stated in shares of the run has the same rates as one with the numbers of steps."""

import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from stages.contracts.errors import BuilderError, ParamsError
from stages.learner import LearnerBuilder
from stages.metrics import Mean
from stages.models import Mlp
from stages.optim import (
    Composed,
    Constant,
    Cosine,
    Linear,
    Noam,
    RunLength,
    Scheduler,
    Sequential,
    Sgd,
    Step,
)
from stages.optim.run_length import Span
from stages.records import DefaultRecorder
from stages.renderers import NoRenderer

LENGTH = RunLength(epochs=4, batches=25)
STATED = [
    (Cosine(), Cosine(num_iters=100)),
    (Cosine(num_iters="50 %", min=0.1), Cosine(num_iters=50, min=0.1)),
    (Linear(final=0.0), Linear(final=0.0, num_iters=100)),
    (Linear(final=0.0, num_iters="2 epochs"), Linear(final=0.0, num_iters=50)),
    (Linear(final=0.0, num_iters="30 steps"), Linear(final=0.0, num_iters=30)),
    (Step(step_size="1 epoch"), Step(step_size=25)),
    (Noam(warmup_steps="10 %"), Noam(warmup_steps=10)),
    (Cosine(warmup="10 %"), Cosine(num_iters=90, warmup=10)),
    (Constant(warmup="0.5 epochs"), Constant(warmup=12)),
    (
        Sequential(schedulers=(Linear(initial=0.1, final=1.0), Cosine()), milestones=("20 %",)),
        Sequential(
            schedulers=(Linear(initial=0.1, final=1.0, num_iters=20), Cosine(num_iters=80)), milestones=(20,)
        ),
    ),
    (
        Composed(schedulers=(Cosine(initial=1.0), Step(step_size="2 epochs"))),
        Composed(schedulers=(Cosine(initial=1.0, num_iters=100), Step(step_size=50))),
    ),
]


def rates(schedule, steps, length=LENGTH):
    """Return the rates of the first *steps* batches of a run of *length*."""
    scheduler = Scheduler(0.5, schedule)
    scheduler.set_length(length)
    return [scheduler.step() for _ in range(steps)]


@pytest.mark.parametrize(("stated", "numbers"), STATED, ids=[str(stated.spans) for stated, _ in STATED])
def test_shares_of_the_run_are_numbers_of_its_steps(stated, numbers):
    assert rates(stated, 120) == rates(numbers, 120)


@pytest.mark.parametrize("span", ["33.3333333 %", "0.00001 %", "1234567 epochs"])
def test_span_keeps_all_digits(span):
    """A span that was written to config.json is the same when it is read again."""
    adapter = TypeAdapter(Span)

    assert adapter.validate_python(adapter.validate_python(span)) == span


def test_cosine_ends_with_the_run_by_default():
    found = rates(Cosine(), 100)

    assert found[0] == 0.5
    assert found[-1] == pytest.approx(0.25 * (1 + math.cos(math.pi * 99 / 100)))


def test_warm_up_grows_by_equal_amounts_to_the_first_rate():
    found = rates(Cosine(warmup=4), 6)

    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found[5] < 0.5


class Rates:
    """The learning rates of the batches."""

    name, unit, better = "Rates", None, None

    def __init__(self):
        self.seen = []

    def measure_step(self, step):
        self.seen.append(step.learning_rate)
        return Mean(0.0, 1)


@pytest.mark.parametrize("leftover", ["flush", "drop", "carry"])
@pytest.mark.parametrize("window", [1, 3, 5, 40])
@pytest.mark.parametrize("batches", [1, 7, 10])
def test_schedule_per_update_has_one_rate_in_a_window_and_ends_with_the_run(
    tmp_path, leftover, window, batches
):
    rates = Rates()
    builder = LearnerBuilder(tmp_path).renderer(NoRenderer()).metrics(rates).num_epochs(3).devices(["cpu"])
    builder.grads_accumulation(window, leftover=leftover)
    learner = builder.build(Mlp((3,), 2), Sgd(), Scheduler(0.6, Linear(final=0.0, per="update")))

    learner.fit([(torch.randn(4, 3), torch.arange(4) % 2) for _ in range(batches)], None)

    numbers = range(3 * batches)
    if leftover == "carry":
        windows = [number // window for number in numbers]
    else:
        begun = [(number // batches, number % batches // window) for number in numbers]
        windows = [sorted(set(begun)).index(one) for one in begun]
    steps = max(windows) + 1
    assert rates.seen == pytest.approx([0.6 * (steps - number) / steps for number in windows])


@pytest.mark.parametrize("value", ["0 %", "101 %", "ten", "1.5 steps", "2 weeks", 0, -1, 1.5, True, None, ""])
def test_wrong_span_is_refused(value):
    with pytest.raises(ValidationError, match="must be an integer from 1 to"):
        TypeAdapter(Span).validate_python(value)


def test_span_is_written_as_it_is_read():
    spans = {"10%": "10 %", "2.5 epochs": "2.5 epochs", "1 epoch": "1 epochs", "500 steps": 500, 3e2: 300}
    spans["200.0 steps"] = 200

    adapter = TypeAdapter(Span)

    assert {value: adapter.validate_python(value) for value in spans} == spans
    assert [adapter.validate_python(value) for value in spans.values()] == list(spans.values())


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Constant(warmup="5 epochs"), "5 epochs is 125 steps, one per batch, and 100 are available"),
        (
            Cosine(num_iters="4 epochs", warmup=10),
            "4 epochs is 100 steps, one per batch, and 90 are available",
        ),
    ],
)
def test_span_that_is_longer_than_the_run_is_refused(schedule, message):
    with pytest.raises(ParamsError, match=message):
        Scheduler(0.5, schedule).set_length(LENGTH)


def test_step_without_the_length_of_the_run_is_refused():
    with pytest.raises(BuilderError, match="cosine, one step per batch depends on the length of the run"):
        Scheduler(0.5, Cosine()).step()


def fit(directory, epochs, batches=6, schedule=None):
    torch.manual_seed(1)
    data = [(torch.randn(4, 3), torch.arange(4) % 2) for _ in range(batches)]
    builder = LearnerBuilder(directory).renderer(NoRenderer()).with_file_checkpointer(DefaultRecorder())
    builder.checkpoint("auto").num_epochs(epochs).devices(["cpu"])
    learner = builder.build(Mlp((3,), 2), Sgd(), Scheduler(0.1, schedule or Cosine(warmup="10 %")))
    learner.fit(data, None)
    return learner


def test_learner_states_the_length_and_refuses_to_resume_with_another(tmp_path):
    learner = fit(tmp_path, 2)
    schedule = learner.components.state.model.scheduler.schedule
    assert (schedule.warmup, schedule.num_iters) == (1, 11)

    with pytest.raises(
        BuilderError, match="had 12 steps, one per batch, and now has 18: that is another run"
    ):
        fit(tmp_path, 3)
    with pytest.raises(BuilderError, match="that is another run"):
        fit(tmp_path, 2, batches=5)
    fit(tmp_path, 2)
