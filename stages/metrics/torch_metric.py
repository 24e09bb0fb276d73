"""Any metric of torchmetrics as one of ours. Needs torchmetrics, from the extra ``metrics``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.extras import load_extra
from stages.contracts.history import Direction
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput, SequenceOutput
from stages.metrics.chunks import Chunks

if TYPE_CHECKING:
    from torchmetrics import Metric


def predictions_and_targets(output: Any) -> tuple[Any, ...]:
    """What most metrics of torchmetrics take: of a classification, probabilities; (B,) of a single logit.

    Of logits torchmetrics would guess batch by batch, by their range, whether they are probabilities.
    """
    match output:
        case SequenceOutput():
            return output.logits, output.targets
        case MultiLabelClassificationOutput():
            return output.output.sigmoid(), output.targets
        case ClassificationOutput() if output.output.ndim == 1 or output.output.shape[1] == 1:
            targets = output.targets.reshape(-1) if output.targets.ndim == 2 else output.targets
            return output.output.sigmoid().reshape(targets.shape), targets
        case ClassificationOutput():
            return output.output.softmax(dim=1), output.targets
    return output.output, output.targets


@dataclass(frozen=True)
class States:
    """What a metric of torchmetrics has accumulated over an epoch so far."""

    owner: "TorchMetric"
    states: Mapping[str, Any]
    """Name to a tensor, or to `Chunks` of what torchmetrics keeps as a list; nothing of no samples."""
    count: int
    """How many samples."""

    def __add__(self, other: Self, /) -> Self:
        if not (self.count and other.count):
            return self if self.count else other
        joined = {
            name: self.owner.join(name, state, other.states[name]) for name, state in self.states.items()
        }
        return type(self)(self.owner, joined, self.count + other.count)

    @property
    def value(self) -> float:
        """What torchmetrics computes from it; NaN of no samples."""
        return self.owner.compute(self) if self.count else float("nan")


@dataclass(eq=False)
class TorchMetric:
    """*metric* with its states as values that add, as torchmetrics adds those of several processes.

    Raises `BuilderError` for a metric whose states cannot be joined exactly.
    """

    metric: "Metric"
    name: str = ""
    """The name of the metric's class where it is empty."""
    unit: str | None = None
    decimals: int = 2
    times: float = 1.0
    """100 makes per cent of a share."""
    key: str | None = None
    """Which number is meant, of a metric that computes several by name."""
    inputs: Callable[[Any], tuple[Any, ...]] = predictions_and_targets
    """From a step's output to what the metric's ``update`` takes."""
    measures: type | tuple[type, ...] = object
    _joins: Mapping[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _utilities()  # reports a missing torchmetrics before anything else fails
        self.name = self.name or type(self.metric).__name__
        self.metric = self.metric.clone()
        self._joins = _joins(self.metric)
        self.metric.sync_on_compute = False  # a learner on several devices adds the values itself
        self.metric.compute_with_cache = False

    @property
    def better(self) -> Direction | None:
        """As torchmetrics says; None where it does not."""
        higher = self.metric.higher_is_better
        return None if higher is None else (Direction.LOWEST, Direction.HIGHEST)[higher]

    def measure(self, output: Any) -> States:
        """What one batch adds. Raises `BuilderError` where the metric does not take it."""
        if not output.size:
            return States(self, {}, 0)
        if self.metric.device != output.loss.device:
            self.metric.to(output.loss.device)
        self.metric.reset()
        try:
            self._update(output)
        except (TypeError, ValueError) as error:
            raise BuilderError(
                f"metric {self.name!r} does not take what the model's step gives: {error}"
            ) from error
        states = {
            name: self._kept(name, state, output.size) for name, state in self.metric.metric_state.items()
        }
        return States(self, states, output.size)

    def join(self, name: str, one: Any, other: Any) -> Any:
        """The state *name* of two batches together."""
        return one + other if isinstance(one, Chunks) else _join()[self._joins[name]](one, other)

    def compute(self, states: States) -> float:
        """The value of *states*. Raises `BuilderError` where that is not one number."""
        for name, state in states.states.items():
            mean = self._is_mean(name)
            plain = list(state) if isinstance(state, Chunks) else state / states.count if mean else state
            setattr(self.metric, name, plain)
        return self.times * self._number(self.metric.compute())

    @torch.no_grad()
    def _update(self, output: Any) -> None:
        inputs = (each.detach() if isinstance(each, Tensor) else each for each in self.inputs(output))
        self.metric.update(*inputs)

    def _number(self, computed: Any) -> float:
        value = computed.get(self.key, computed) if isinstance(computed, dict) else computed
        if isinstance(value, Tensor) and value.numel() == 1:
            return value.item()
        there = ", ".join(value) if isinstance(value, dict) else f"a {type(value).__name__}"
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise BuilderError(
            f"metric {self.name!r} computes no single number but {there}{shape}: "
            "have it averaged, or name a key of it in TorchMetric(…, key=…)"
        )

    def _kept(self, name: str, state: Any, size: int) -> Any:
        if isinstance(state, list):  # of views of the output, which a captured graph writes over
            copies = tuple(each.clone() if isinstance(each, Tensor) else each for each in state)
            return Chunks((copies,)) if copies else Chunks()
        return state * size if self._is_mean(name) else state

    def _is_mean(self, name: str) -> bool:
        return self._joins[name] is _utilities().dim_zero_mean


@cache
def _utilities() -> Any:
    return load_extra("torchmetrics.utilities", "metrics", TorchMetric.__name__)


@cache
def _join() -> Mapping[Any, Callable[[Any, Any], Any]]:
    """Return how two batches' tensors become one, by how torchmetrics joins those of two processes.

    A mean is kept as the sum over samples until its value is read.
    """
    return {
        _utilities().dim_zero_sum: torch.add,
        _utilities().dim_zero_mean: torch.add,
        _utilities().dim_zero_max: torch.maximum,
        _utilities().dim_zero_min: torch.minimum,
    }


def _joins(metric: "Metric") -> dict[str, Any]:
    """How each state of *metric* is joined. Raises `BuilderError` where two cannot be."""
    name = type(metric).__name__
    kind = load_extra("torchmetrics", "metrics", TorchMetric.__name__).Metric
    joins: dict[str, Any] = dict(vars(metric)["_reductions"])  # torchmetrics has no public way to ask
    if not joins or any(isinstance(child, kind) for child in metric.children()):
        raise BuilderError(
            f"metric {name!r} keeps no states of its own, so an epoch's batches cannot be added up"
        )
    for state, join in joins.items():
        listed = isinstance(metric.metric_state[state], list)
        if join not in ({_utilities().dim_zero_cat, None} if listed else _join()):
            raise BuilderError(
                f"metric {name!r} has a state {state!r} that cannot be joined from two batches "
                f"(its dist_reduce_fx is {getattr(join, '__name__', join)}): measure it after the training"
            )
    return joins
