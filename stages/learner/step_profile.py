"""A profile of training steps: the time of their parts, the slowest operators, and a trace for a browser."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function, schedule, supported_activities

from stages.contracts.errors import BuilderError
from stages.learner.batches import Loader
from stages.learner.learner import Learner
from stages.learner.lr_finder import FirstBatches

OPERATORS = 10
"""The number of operators in the table."""


@dataclass(frozen=True)
class StepProfile:
    """The mean time of a training step on the host, and of its parts."""

    steps: int
    seconds: float
    """The time of a step."""
    parts: dict[str, float]
    """Seconds of ``data``, ``forward``, ``backward`` and ``optimizer``; ``other`` is the rest of a step."""
    operators: str
    """A table of the operators with the most time."""

    def __str__(self) -> str:
        """Return a line for each part, with its share."""
        rows = [*self.parts.items(), ("step", self.seconds)]
        lines = [f"{name:<10}{1e6 * each:>12,.0f} µs{each / self.seconds:>8.0%}" for name, each in rows]
        return "\n".join(lines)


def profile_steps(learner: Learner, train: Loader, *, steps: int, warm_up: int, trace: Path) -> StepProfile:
    """Train *learner* for *warm_up* and then *steps* batches of *train*, and measure the latter.

    Write a trace for ``chrome://tracing`` or Perfetto to *trace*. Steps must be eager. On an accelerator the
    times are those in which the host starts the work; the trace has those of the device. Raises
    `BuilderError` if *steps* or *warm_up* is below 1.
    """
    if min(steps, warm_up) < 1:
        raise BuilderError(f"steps and warm_up must be at least 1; found {steps} and {warm_up}")
    timer, state = _Timer(), learner.components.state
    for owner, name, part in (
        (state, "run_step", "forward"),
        (state.precision, "run_backward", "backward"),
        (state.model, "update", "optimizer"),
    ):
        setattr(owner, name, timer.wrap(getattr(owner, name), part))
    available = supported_activities()  # type: ignore[no-untyped-call]
    activities = available & {ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.XPU}
    with profile(
        activities=activities, schedule=schedule(wait=warm_up - 1, warmup=1, active=steps, repeat=1)
    ) as profiler:
        batches = _TimedBatches(train, timer, profiler.step, warm_up, steps)
        learner.fit(batches, [next(iter(train))])
    trace.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(trace))
    parts = {name: timer.seconds[name] / steps for name in ("data", "forward", "backward", "optimizer")}
    parts["forward"] -= parts["backward"]  # the backward pass is a part of the model's step
    whole = batches.seconds / steps
    parts["other"] = whole - sum(parts.values())
    table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=OPERATORS)
    return StepProfile(steps, whole, parts, table)


class _Timer:
    """The seconds of each part, summed while the timer is on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.is_on = False

    def wrap(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return *function*, whose calls are added to *part*."""

        @wraps(function)
        def measure(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            with record_function(part):
                result = function(*arguments, **options)
            if self.is_on:
                self.seconds[part] += time.perf_counter() - start
            return result

        return measure


class _TimedBatches(FirstBatches):
    """Batches whose loading is measured after the first *warm_up* ones."""

    def __init__(
        self, loader: Loader, timer: _Timer, end_step: Callable[[], None], warm_up: int, steps: int
    ) -> None:
        super().__init__(loader, warm_up + steps)
        self.seconds = 0.0
        """The time of all steps after the first ones."""
        self._timer = timer
        self._end_step = end_step
        self._warm_up = warm_up

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        load = self._timer.wrap(lambda: next(batches, None), "data")
        start = time.perf_counter()
        for number in range(len(self)):
            if number == self._warm_up:
                self._timer.is_on, start = True, time.perf_counter()
            yield load()
            self._end_step()
        self._timer.is_on = False
        self.seconds = time.perf_counter() - start
