"""A training step as one CUDA graph: forward and backward pass, guard, window, clipping, update and metrics.

A step of a small model launches some sixty kernels, and launching them takes longer than their work. A graph
launches them at once. It reads and writes the same tensors each time: a batch, or its indices if the data is
on the device, is copied to the tensors that were captured, and numbers are written to a `ResultRing`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stages.contracts.history import Split
from stages.contracts.outputs import TrainOutput
from stages.contracts.placement import DeferredBatch, load, transform
from stages.contracts.step_log import current_log
from stages.devices.cuda_capturer import CudaCapturer, ResultRing
from stages.devices.rng import host_generator_states
from stages.learner.assembly import Components
from stages.learner.checks import StepChecks
from stages.learner.metering import MAX_PENDING_BATCHES, MAX_READ_DELAY
from stages.learner.steps.capture_conditions import (
    CAPTURE_DEVICES,
    describe_batch,
    describe_model,
    describe_object,
    find_means,
    find_obstacle,
    has_only_tensors,
    leaves_of,
)
from stages.learner.steps.step_strategies import PlainStep, StepResult
from stages.metrics import Mean
from stages.models import clear_gradients
from stages.optim import DeviceGuard, Gradients, Totals

WARM_UP_STEPS = 3
"""Eager steps on batches of one shape before a capture; they initialize libraries and the optimizer."""
MIN_REPLAYS = 64
"""The number of launches that makes up for a capture."""
RATE_DTYPE = torch.float32
"""The type in which the kernels on a CUDA device read a rate."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Results:
    """The results of a captured step, in tensors that each launch overwrites."""

    item: Any
    rows: Sequence[Tensor]
    """The row of the guard, in each slot of the ring."""
    means: Sequence[Mapping[str, Mean]]
    """The values of metrics that are measured in the graph, in each slot."""
    sum_rows: Sequence[Tensor] = ()
    """The row of the accumulated gradients, if the step ends a window of several batches."""


@dataclass
class Capture:
    """A capture of the step: its progress, its graphs, and the tensors that they read and write."""

    warm_ups: int = 0
    """The number of eager steps in preparation of the capture."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """A description of the model."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """A description of each metric."""
    options: list[list[Any]] = field(default_factory=list)
    """The options of each group of the optimizer, except for its rate."""
    present: list[bool] = field(default_factory=list)
    """Whether each parameter has a gradient; empty before an update in the warm-up."""
    totals: Totals | None = None
    """The sums of a window of several batches."""
    has_sums: bool = False
    """True if `totals` contains sums of an earlier window."""
    graphs: dict[bool, Callable[[], Results]] = field(default_factory=dict)
    """The launch of the step without an update, and with one."""
    batch: Any = None
    inputs: list[Tensor] = field(default_factory=list)
    """The tensors in `batch`."""
    rates: list[Tensor] = field(default_factory=list)
    filled: list[float] = field(default_factory=list)
    """The numbers in `rates`."""
    ring: ResultRing = field(init=False)
    replays: int = 0


class CudaGraphStep(PlainStep):
    """A plain step that is captured after a few eager ones, and then replayed for all batches of that shape.

    An accumulation window has two graphs: one accumulates, the other also updates. The graphs are dropped if
    the model, the optimizer or its state is replaced.
    """

    _guard: DeviceGuard

    def __init__(self, components: Components, checks: StepChecks) -> None:
        super().__init__(components.state, checks)
        self._device = components.device
        self._capturer = CudaCapturer(components.device)
        self._slots = MAX_PENDING_BATCHES + MAX_READ_DELAY
        """The most launches whose results the host has not read."""
        metrics = [metric for metric in components.observers.metrics[Split.TRAIN] if not metric.covers_pass]
        self._metrics = find_means(metrics)
        self._readers = {metric.name for metric in metrics if metric.reads_output}
        """The metrics that need the output, if the graph does not measure them."""
        self._level = log_level(components)
        self._is_eager = False
        self._signature: Any = None
        self._other: Any = None
        self._eager_steps = 0
        self._warms_up = False
        """True if the next eager step prepares a capture."""
        self._capture = Capture()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Set the model to training mode for the block; drop the graphs if it is not what was captured."""
        with super().training():
            if self._capture.graphs and self._capture.model != describe_model(self._model):
                self._restart("the model changes between epochs")
            yield
        if self._is_eager or self._capture.graphs:
            return
        if self._eager_steps > MIN_REPLAYS * self._window.length:
            self._refuse("too few batches have the same shape")

    def compute(self, batch: Any) -> TrainOutput[Any]:
        """Run forward and backward on *batch* eagerly; before a capture, on its stream."""
        self._eager_steps += 1
        batch = load(batch)
        if not self._warms_up:
            return super().compute(batch)
        self._capture.warm_ups += 1
        self._capture.model, generators = describe_model(self._model), host_generator_states()
        with self._capturer.side_stream():
            step = super().compute(batch)
        if self._capture.warm_ups == WARM_UP_STEPS:
            self._check_host(generators)
        return step

    def _update(self, gradients: Gradients, rate: float, *, epoch: int, iteration: int) -> None:
        """Update the model eagerly."""
        super()._update(gradients, rate, epoch=epoch, iteration=iteration)
        capture = self._capture
        if not capture.graphs and capture.warm_ups == WARM_UP_STEPS:
            capture.present = [gradient is not None for gradient in gradients]
            capture.options = self._state.constant_options
            capture.totals = Totals(gradients, self.weight) if self._is_sum else None

    def step(self, batch: Any, rate: float, *, epoch: int, iteration: int) -> StepResult:
        """Run the step on *batch* by a launch of its graph, or eagerly."""
        if self._replays(batch):
            return self._replay(batch, rate, epoch=epoch, iteration=iteration)
        return super().step(batch, rate, epoch=epoch, iteration=iteration)

    def _replays(self, batch: Any) -> bool:
        """Return whether `_replay` accepts *batch*; capture the step first if it is time to."""
        self._warms_up = False
        if self._is_eager or not self._is_usual(describe_batch(batch)):
            return False
        capture = self._capture
        if not capture.present:
            self._warms_up = capture.warm_ups < WARM_UP_STEPS
            return False
        if self._state.is_changed or capture.options != self._state.constant_options:
            self._restart("the optimizer or an option of it, besides the rate, changes in training")
            return False
        if capture.totals is not None and not self._window.holds(capture.totals):
            return False
        return self._ends in capture.graphs or self._capture_step(batch)

    def _replay(self, batch: Any, rate: float, *, epoch: int, iteration: int) -> StepResult:
        """Run the step on *batch*, with the update if the window is full, by a launch of its graph."""
        capture, totals, ends = self._capture, self._capture.totals, self._ends
        for static, tensor in zip(capture.inputs, _tensors_of(batch), strict=True):
            static.copy_(tensor.detach())
        if totals is not None and self._window.batches == 0 and capture.has_sums:
            totals.clear()
        if ends:
            self._fill_rates(self._state.prepare_update(rate))
        slot = capture.ring.advance()
        results = capture.graphs[ends]()
        capture.replays += 1
        self._guard.record(results.rows[slot], epoch, iteration)
        if totals is not None:
            if ends:
                self._guard.record_sum(results.sum_rows[slot], epoch, iteration)
            self._window.count(totals)
            capture.has_sums = not ends
        if ends:
            self._state.end_step()
        self._has_gradients = True  # that was a condition of the capture
        means, item = results.means[slot], results.item
        copied = _clone(item) if self._readers - means.keys() else item
        return StepResult(copied, item.size, means)

    @property
    def _ends(self) -> bool:
        """True if the next batch fills the window."""
        return self._window.batches + 1 == self._window.length

    def _is_usual(self, signature: Any) -> bool:
        """Return whether a batch has the shape to capture: the first, or a later one that is repeated."""
        if signature == self._signature:
            self._other = None
            return True
        if not self._capture.graphs and (self._signature is None or signature == self._other):
            self._capture = Capture()
            self._signature = signature
            return True
        self._other = signature
        return False

    def _check_host(self, generators: tuple[Any, ...]) -> None:
        """Refuse the capture if the last step changed the model or *generators*, the states before it."""
        before, after = self._capture.model, describe_model(self._model)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        name = f"{type(self._model).__name__}.train_step"
        if changed:
            self._refuse(f"{name} sets {changed[0]}")
        elif generators != host_generator_states():
            self._refuse(f"{name} draws random numbers on the host")
        elif (log_of_pass := current_log.get()) is not None and log_of_pass.is_used:
            self._refuse(f"{name} logs numbers or samples")
        self._capture.metrics = {name: describe_object(metric) for name, metric in self._metrics.items()}

    def _fill_rates(self, rates: list[float]) -> None:
        capture = self._capture
        for tensor, filled, rate in zip(capture.rates, capture.filled, rates, strict=True):
            if filled != rate:
                tensor.fill_(rate)
        capture.filled = rates

    def _capture_step(self, batch: Any) -> bool:
        """Capture the step, without its metrics if one reads the device; return whether that succeeded."""
        capture = self._capture
        if not capture.inputs:
            capture.batch = _clone(batch)
            capture.inputs = _tensors_of(capture.batch)
            capture.rates = [torch.zeros((), dtype=RATE_DTYPE, device=self._device) for _ in capture.options]
            capture.filled = [0.0] * len(capture.rates)
            row = len(self._guard.names) + 1
            widths = {"rows": row, "sum_rows": row, "means": 2 * len(self._metrics)}
            capture.ring = ResultRing(self._device, self._slots, widths)
        stable = {
            name: metric
            for name, metric in self._metrics.items()
            if describe_object(metric) == capture.metrics[name]
        }
        failure = self._try_capture(stable)
        if failure and stable:
            self._metrics = {}
            failure = self._try_capture({}) and failure
        if failure:
            self._level = logging.WARNING
            self._refuse(f"the capture failed: {failure}")
        return not self._is_eager

    def _try_capture(self, metrics: Mapping[str, Any]) -> str:
        """Capture the step with *metrics*; return the reason for which that failed, or an empty string."""
        clear_gradients(self._model)  # so that the graph can use their memory
        try:
            run = partial(self._run, metrics, ends=self._ends)
            self._capture.graphs[self._ends] = self._capturer.capture(run)
        except Exception as error:  # noqa: BLE001  whatever it is, the same step runs eagerly
            self._capture.graphs.clear()  # a failed capture replaces the generator that they draw from
            return _describe_cause(error)
        finally:
            clear_gradients(self._model)
        return ""

    def _run(self, metrics: Mapping[str, Any], *, ends: bool) -> Results:
        """Run the step to capture. It changes nothing but tensors, as a launch of the graph does."""
        capture, totals, window = self._capture, self._capture.totals, self._window
        step = super().compute(load(capture.batch))
        if [gradient is not None for gradient in step.gradients] != capture.present:
            raise ValueError("not all steps have gradients of the same parameters")
        means = _measure_means(metrics, step.item)
        if self._readers - means.keys() and not has_only_tensors(step.item):
            raise ValueError(f"{type(step.item).__name__} is not a dataclass of tensors, to be copied")
        numbers, gradients = {"rows": self._guard.measure(step, self.weight)}, step.gradients
        if totals is not None:
            window.add_on_device(totals, gradients, self.weight)
            if ends:
                gradients = window.take_on_device(totals)
                numbers["sum_rows"] = self._guard.measure_sum(gradients, totals.weight)
        if ends:
            self._state.update_on_device(gradients, capture.rates, self._guard.flag)
            if totals is not None:
                totals.clear()
        if tensors := _tensors_of(means):
            numbers["means"] = torch.stack([tensor.to(torch.float64) for tensor in tensors])
        slots = capture.ring.write(**numbers)
        values = [_fill_means(means, iter(slot.unbind())) for slot in slots.pop("means", ())]
        return Results(_detach(step.item), means=values or [means] * self._slots, **slots)

    def _restart(self, reason: str) -> None:
        """Drop the graphs, to capture the step again, unless they were used too little."""
        if self._capture.replays < MIN_REPLAYS:
            self._refuse(reason)
        self._eager_steps = 0
        self._capture = Capture()
        self._capturer.renew()

    def _refuse(self, reason: str) -> None:
        """Run all further steps eagerly."""
        report_eager(reason, self._level)
        self._is_eager = True
        self._capture = Capture()


def build_captured_step(components: Components, checks: StepChecks) -> CudaGraphStep | None:
    """Return the captured step of a run; None, with a line in the log, if its steps are all eager."""
    asked, device = components.options.step, components.device
    if asked == "eager" or (asked == "auto" and device.type not in CAPTURE_DEVICES):
        return None
    obstacle = find_obstacle(components)
    if obstacle is None:
        return CudaGraphStep(components, checks)
    report_eager(obstacle, log_level(components))
    return None


def log_level(components: Components) -> int:
    """Return the level of the line about eager steps: a warning if captured ones were asked for."""
    return logging.WARNING if components.options.step == "captured" else logging.INFO


def report_eager(reason: str, level: int) -> None:
    """Log the *reason* for which steps run eagerly."""
    log.log(level, "the training steps of this run are not captured in a CUDA graph: %s", reason)


def _describe_cause(error: BaseException) -> str:
    """Return the innermost cause of *error*; the end of a capture raises an error about the first one."""
    while (cause := error.__cause__ if error.__suppress_context__ else error.__context__) is not None:
        error = cause
    reason = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {reason}"


def _measure_means(metrics: Mapping[str, Any], item: Any) -> dict[str, Mean]:
    """Return the values of *metrics* that are tensors on the device."""
    values = {name: metric.measure(item) for name, metric in metrics.items()}
    return {
        name: _detach(value)
        for name, value in values.items()
        if type(value) is Mean and isinstance(value.total, Tensor)
    }


def _fill_means(means: Mapping[str, Mean], numbers: Iterator[Tensor]) -> dict[str, Mean]:
    """Return *means* with the next of *numbers* in place of each tensor."""
    filled: dict[str, Mean] = transform(means, lambda _: next(numbers))
    return filled


def _clone(tree: Any) -> Any:
    """Return *tree* with copies of its tensors, also of those in an object that has a method ``to``."""
    return transform(tree, lambda tensor: tensor.detach().clone(), _is_tensor)


def _detach(tree: Any) -> Any:
    """Return *tree* with its tensors detached."""
    return transform(tree, Tensor.detach, _is_tensor)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _tensors_of(batch: Any) -> list[Tensor]:
    if isinstance(batch, DeferredBatch):
        return [batch.indices]
    return [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]
