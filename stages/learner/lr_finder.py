"""The learning-rate finder of Smith (2017): the loss while the rate grows from batch to batch."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch

from stages.contracts.errors import BuilderError
from stages.contracts.events import NoRenderer
from stages.contracts.history import Split
from stages.learner.batches import Loader, LoaderOptions
from stages.learner.builder import LearnerBuilder
from stages.metrics import LearningRateMetric, LossMetric
from stages.optim import NonFiniteError, Scheduler

SMOOTHING = 0.9
"""The share of the mean that the next loss keeps."""
DIVERGENCE = 4.0
"""The curve ends when the smoothed loss exceeds its minimum by this factor, as in fastai."""
SKIPPED_SHARE = 0.1
"""The share of the first rates that is not suggested, because the mean of few losses is not smooth."""


@dataclass(frozen=True)
class LearningRateCurve:
    """The loss of each batch, by the learning rate of its step."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def running_mean(self) -> list[float]:
        """The running mean of the losses, without the bias of its start."""
        mean, smoothed = 0.0, []
        for number, loss in enumerate(self.losses, start=1):
            mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
            smoothed.append(mean / (1 - SMOOTHING**number))
        return smoothed

    @property
    def suggestion(self) -> float | None:
        """The rate at which the smoothed loss falls most steeply; None if it falls nowhere."""
        first = math.ceil(SKIPPED_SHARE * len(self.rates))
        rates, smoothed = self.rates[first:], self.running_mean[first:]
        if len(rates) < 3:
            return None
        slopes = np.gradient(np.array(smoothed), np.log(np.array(rates)))
        steepest = int(slopes.argmin())
        return rates[steepest] if slopes[steepest] < 0 else None

    def until_divergence(self) -> "LearningRateCurve":
        """Return the curve up to the first loss that is not finite or far above the minimum.

        If losses are negative, as log densities are, a multiple of the minimum may be below it. The distance
        to it is then compared with its size, or with the fall from the first loss if that is larger.
        """
        smoothed, lowest = self.running_mean, math.inf
        has_negative = any(loss < 0 for loss in self.losses)
        for end, loss in enumerate(smoothed):
            lowest = min(lowest, loss)
            size = max(abs(lowest), smoothed[0] - lowest) if has_negative else lowest
            if not math.isfinite(loss) or loss > lowest + (DIVERGENCE - 1) * size:
                return LearningRateCurve(self.rates[:end], self.losses[:end])
        return self


def find_learning_rate(
    builder: LearnerBuilder,
    model: Any,
    optimizer: Any,
    train: Loader,
    *,
    rates: tuple[float, float] = (1e-7, 10.0),
    steps: int = 100,
) -> LearningRateCurve:
    """Train *model* for *steps* batches while the rate grows from the first of *rates* to the second.

    *builder* has the options of the training, for example its devices, but neither metrics nor a
    checkpointer, and is not changed. Its limit of batches and its version of Burn have no effect, and batches
    that its rule for non-finite numbers skips are not in the curve. The model and the optimizer are changed:
    build new ones for a training. The curve ends before the loss diverges. Raises `BuilderError` if *rates*
    do not grow, or *steps* is below 10.
    """
    lowest, highest = rates
    if not 0 < lowest < highest:
        raise BuilderError(f"the learning rates must be above 0 and grow; found {lowest:g} to {highest:g}")
    if steps < 10:
        raise BuilderError(f"steps must be at least 10; found {steps}")
    growth = (highest / lowest) ** (1 / (steps - 1))
    curve = _Curve()
    finder = copy(builder).metrics(LossMetric()).metric_train(LearningRateMetric()).num_epochs(1)
    finder.limit_batches().burn(None).renderer(curve)  # each call replaces options
    learner = finder.build(model, optimizer, Scheduler(lowest, _Growth(growth)))
    batches = FirstBatches(train, steps)
    with suppress(NonFiniteError):  # the last loss is then the end of the curve
        learner.fit(batches, [next(iter(batches))])
    return LearningRateCurve(tuple(curve.rates), tuple(curve.losses)).until_divergence()


@dataclass(frozen=True)
class _Growth:
    """A schedule that multiplies the rate by *factor* in each step."""

    factor: float

    def rate(self, initial: float, iteration: int) -> float:
        return initial * self.factor**iteration


@dataclass(eq=False)
class FirstBatches:
    """The first *steps* batches of a loader, which starts new epochs as often as needed."""

    loader: Loader
    steps: int

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        return islice(chain.from_iterable(map(self._open, count(1))), self.steps)

    def _open(self, epoch: int) -> Loader:
        LoaderOptions.of(self.loader).set_epoch(epoch)
        return self.loader

    @property
    def set_device(self) -> Callable[[torch.device], None] | None:
        """The method with which the loader moves its batches to a device; None if it has none."""
        return LoaderOptions.of(self.loader).set_device


class _Curve(NoRenderer):
    """A renderer that collects the rate and the loss of each training batch."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []

    def log(self, split: Split, epoch: int, name: str, value: float) -> None:  # noqa: ARG002  the protocol's
        if split is not Split.TRAIN:
            return
        if name == LearningRateMetric.name:
            self.rates.append(value)
        else:  # a batch without a counted target has the loss of the one before
            self.losses.append(self.losses[-1] if math.isnan(value) and self.losses else value)
