"""Logits and targets of classification, in the shapes that every classification metric accepts.

A model with one class per sample or position returns logits (B, C, …) for targets (B, …), as
`torch.nn.functional.cross_entropy` expects them; the classes of a `SequenceOutput` are in the last dimension,
(B, T, V) for (B, T). A binary model may return one logit, (B,) or (B, 1), for targets 0 and 1 of either
shape; a logit above 0 predicts class 1.

A target of -100, which `cross_entropy` ignores, is not counted. If several logits are equal, the one with the
lowest index counts as the highest. A row of logits that contains NaN predicts no class and is never correct.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import (
    IGNORED_TARGET,
    ClassificationOutput,
    MultiLabelClassificationOutput,
    SequenceOutput,
    is_counted,
)
from stages.metrics.state import Mean

SingleLabelOutput = ClassificationOutput | SequenceOutput
"""An output with one class per sample or token."""
AnyClassificationOutput = ClassificationOutput | MultiLabelClassificationOutput
"""An output with one class or any number of labels per sample."""

Value = TypeVar("Value")
Kind = tuple[torch.Size, torch.Size, torch.dtype, torch.dtype, bool, bool]
"""The shapes and dtypes of logits and targets, and whether each is on a CPU."""
_STORED = "_values_of_metrics"
MAX_COLLECTED_BATCHES = 64
MAX_COLLECTED_NUMBERS = 1 << 14
"""The most logits of a batch that is collected: 4 MB for all batches."""

NO_CLASS = torch.iinfo(torch.int64).min
"""The prediction for a row that contains NaN; equal to no target."""


class Reduction(StrEnum):
    """How the scores of the classes are combined into one number. Burn's `ClassReduction`."""

    MACRO = "macro"
    """The mean of the scores of the classes."""
    MICRO = "micro"
    """The score of the summed counts of all classes."""


def parse_reduction(name: str, title: str) -> Reduction:
    """Return the reduction called *name*. Raises `BuilderError`, which names the metric *title*."""
    if name not in list(Reduction):
        raise BuilderError(f"{title} takes the reduction {' or '.join(Reduction)}, not {name!r}")
    return Reduction(name)


def compute_once(output: AnyClassificationOutput, key: Hashable, compute: Callable[[], Value]) -> Value:
    """Return the result of *compute*, which *output* stores under *key* for the other metrics of the batch.

    It is computed again if a tensor of *output* has changed, and always on an accelerator, because a CUDA
    graph changes tensors unseen.
    """
    tensors = (output.output, output.targets)
    if not all(tensor.is_cpu and not tensor.is_inference() for tensor in tensors):
        return compute()
    version = [(id(tensor), tensor._version) for tensor in tensors]  # noqa: SLF001  autograd's counter
    stored = vars(output).get(_STORED)
    if stored is None or stored[0] != version:
        stored = vars(output)[_STORED] = (version, {})
    values: dict[Hashable, Any] = stored[1]
    if key not in values:
        values[key] = compute()
    result: Value = values[key]
    return result


def split_output(output: SingleLabelOutput, metric: str) -> tuple[Tensor, Tensor, int | None]:
    """Return the detached logits, the targets, and the dimension of the classes.

    The dimension is None for one logit per target; then logits and targets have the same shape. Raises
    `BuilderError`, which names the *metric*, if the shapes do not match or targets of one logit are soft.
    """
    if isinstance(output, SequenceOutput):
        logits, dim = output.logits.detach(), -1
    else:
        logits, dim = output.output.detach(), 1
    targets, shape = output.targets, logits.shape
    if len(shape) > 1 and shape[dim] > 1:
        if targets.shape != (shape[:-1] if dim == -1 else shape[:1] + shape[2:]):
            _raise_shape_error(logits, targets, metric)
        return logits, targets, dim
    single = logits if len(shape) == 1 else logits.squeeze(dim)
    if targets.ndim == single.ndim + 1 and targets.shape[dim] == 1:
        targets = targets.squeeze(dim)
    if targets.shape != single.shape:
        _raise_shape_error(logits, output.targets, metric)
    if targets.is_floating_point():
        _check_hard_targets(targets, metric)
    return single, targets, None


def widen(numbers: Tensor) -> Tensor:
    """Return *numbers* in float32 or wider: in half precision many probabilities are rounded to one."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def predict_classes(output: SingleLabelOutput, metric: str) -> tuple[Tensor, Tensor]:
    """Return the predicted class of each target, and the targets; `NO_CLASS` for a row that contains NaN.

    Raises `BuilderError`, which names the *metric*, if the shapes do not match.
    """
    logits, targets, dim = split_output(output, metric)
    if dim is None:
        return (logits > 0).long().masked_fill_(logits.isnan(), NO_CLASS), targets
    return argmax_class(logits, dim), targets


def argmax_class(logits: Tensor, dim: int) -> Tensor:
    """Return the index of the highest of *logits* along *dim*; `NO_CLASS` if one of them is NaN."""
    values, classes = logits.max(dim)  # the maximum of a row that contains NaN is NaN
    return classes.masked_fill_(values.isnan(), NO_CLASS)


def top_k_mask(logits: Tensor, k: int, dim: int) -> Tensor:
    """Return a mask of the *k* highest of *logits* along *dim*; all False for a row that contains NaN."""
    lowest = logits.topk(k, dim).values.narrow(dim, k - 1, 1)
    is_greater, tied = logits > lowest, logits == lowest
    free = k - is_greater.sum(dim, keepdim=True)
    mask = is_greater | (tied & (tied.cumsum(dim) <= free))  # topk itself breaks ties in any order
    return mask & ~logits.isnan().any(dim, keepdim=True)


def compute_hit_rate(hits: Tensor, targets: Tensor, pad_token: int | None) -> Mean:
    """Return the rate of *hits* among *targets* in percent; ignored targets and *pad_token* do not count.

    *hits* are booleans of the shape of *targets*.
    """
    counted = is_counted(targets, pad_token)
    if pad_token is not None:
        hits = hits & counted
    dtype = torch.int64 if hits.device.type == "mps" else torch.float64
    total, weight = torch.stack((hits, counted)).flatten(1).sum(1, dtype=dtype)  # both in one reduction
    return Mean.from_sum(total, weight, 100.0)


def compute_accuracy(output: SingleLabelOutput, metric: str, pad_token: int | None) -> Mean:
    """Return the rate of predicted classes that equal their target, as `compute_hit_rate` does.

    Raises `BuilderError`, which names the *metric*, if the shapes do not match.
    """
    if type(output) is not ClassificationOutput or not _is_collected(_kind_of(output)):
        predicted, targets = predict_classes(output, metric)
        return compute_hit_rate(predicted == targets, targets, pad_token)
    scores, labels = output.output.detach().numpy(), output.targets.numpy()
    return _compare(scores[None], labels[None], pad_token)[0]


class ClassCollector:
    """Copies of the logits and targets of batches of one kind, whose accuracy is computed in one pass.

    An operation on many small batches takes hardly more time than on one.
    """

    def __init__(self, measure: Callable[[Any], Mean], pad_token: int | None) -> None:
        self._measure = measure
        self._pad_token = pad_token
        self._kind: Kind | None = None
        self._scores, self._labels = torch.empty(0, device="cpu"), torch.empty(0, device="cpu")
        self._rows: list[tuple[Tensor, Tensor]] = []
        """The memory for the logits and targets of each batch."""
        self._count = 0

    def add(self, output: SingleLabelOutput) -> Mean | None:
        """Copy *output*, or measure one that is too large, or of another kind than the first one."""
        if type(output) is not ClassificationOutput:
            return self._measure(output)
        kind, count = _kind_of(output), self._count
        if count == MAX_COLLECTED_BATCHES or (kind != self._kind and (count or not self._prepare(kind))):
            return self._measure(output)
        scores, labels = self._rows[count]
        scores.copy_(output.output.detach())
        labels.copy_(output.targets)
        self._count = count + 1
        return None

    def _prepare(self, kind: Kind) -> bool:
        """Provide memory for outputs of *kind*, and return whether they are collected."""
        shape, labels_shape, *_ = kind
        if not _is_collected(kind) or shape.numel() > MAX_COLLECTED_NUMBERS:
            return False
        self._kind = kind
        size = MAX_COLLECTED_BATCHES
        self._scores = torch.empty((size, *shape), dtype=torch.float32, device="cpu")
        self._labels = torch.empty((size, *labels_shape), dtype=torch.int64, device="cpu")
        self._rows = [*zip(self._scores, self._labels, strict=True)]
        return True

    def measure(self) -> list[Mean]:
        """Return the accuracy of each batch that was copied since the last call."""
        count, self._count = self._count, 0
        if not count:
            return []
        scores, labels = self._scores[:count].numpy(), self._labels[:count].numpy()
        return _compare(scores, labels, self._pad_token)


def _kind_of(output: ClassificationOutput) -> Kind:
    logits, targets = output.output, output.targets
    return logits.shape, targets.shape, logits.dtype, targets.dtype, logits.is_cpu, targets.is_cpu


def _is_collected(kind: Kind) -> bool:
    """Return whether an output of *kind* has float32 logits (B, C) for targets (B,), as those of most models.

    NumPy compares them in a third of torch's time.
    """
    shape, labels_shape, *others = kind
    is_table = len(shape) == 2 and shape[1] > 1 and labels_shape == shape[:1]
    return is_table and others == [torch.float32, torch.int64, True, True]


def _compare(
    scores: "np.ndarray[Any, Any]", labels: "np.ndarray[Any, Any]", pad_token: int | None
) -> list[Mean]:
    """Return the accuracy of each batch in *scores*, (N, B, C), and *labels*, (N, B)."""
    counted, hits = labels != IGNORED_TARGET, scores.argmax(2) == labels
    if pad_token is not None:
        counted &= labels != pad_token
        hits &= counted
    flat = scores.ravel()
    if not flat.dot(flat) >= 0:  # a sum of squares is NaN only if one of them is
        hits &= ~np.isnan(scores).any(2)
    return [*map(Mean, (100.0 * hits.sum(1)).tolist(), counted.sum(1).tolist())]


def check_label_shapes(output: MultiLabelClassificationOutput, metric: str) -> None:
    """Raise `BuilderError`, which names the *metric*, unless logits and targets have the same shape."""
    if output.output.shape != output.targets.shape:
        raise BuilderError(
            f"metric {metric!r} compares each label's logit with its target, but the model's step returns "
            f"logits {tuple(output.output.shape)} for targets {tuple(output.targets.shape)}: return both "
            "with the shape (B, labels)"
        )


def is_soft(targets: Tensor) -> bool:
    """Return whether any of *targets*, of one logit each, is neither 0 nor 1 nor ignored."""
    return not ((targets == 0) | (targets == 1) | (targets == IGNORED_TARGET)).all()


def _raise_shape_error(logits: Tensor, targets: Tensor, metric: str) -> NoReturn:
    if targets.shape == logits.shape:
        advice = "for soft or one-hot targets measure the class, targets.argmax(1), with MetricAdapter"
    else:
        advice = "reshape one of them in the model's step"
    raise BuilderError(
        f"metric {metric!r} takes logits (B, C, …) for targets (B, …), tokens (B, T, V) for (B, T), or one "
        f"logit, (B,) or (B, 1); the model's step returns logits {tuple(logits.shape)} for targets "
        f"{tuple(targets.shape)}: {advice}"
    )


def _check_hard_targets(targets: Tensor, metric: str) -> None:
    """Raise `BuilderError` for soft targets on a CPU; reading them would block on another device."""
    if targets.is_cpu and is_soft(targets):
        raise BuilderError(
            f"metric {metric!r} takes targets of 0 and 1 for one logit, but the model's step returns targets "
            f"from {targets.min().item():g} to {targets.max().item():g}: round them, with MetricAdapter, or "
            "register another metric"
        )


@dataclass(frozen=True)
class ClassTable:
    """A batch as a table with one column per class: the logits, and which classes are correct."""

    logits: Tensor
    """(N, C), detached; N counts samples or positions."""
    is_target: Tensor
    """(N, C), booleans: whether the class is correct; for a single logit, of class 1."""
    is_counted: Tensor | None
    """(N,), booleans: the rows whose target is not ignored; None for multi-label outputs."""
    has_independent_classes: bool
    """Whether the sigmoid of each logit is a probability: for several labels, or for a single logit."""

    @property
    def weight(self) -> int | Tensor:
        """The number of rows whose target is not ignored; a scalar tensor on an accelerator."""
        if self.is_counted is None:
            return len(self.is_target)
        return int(self.is_counted.sum()) if self.is_counted.is_cpu else self.is_counted.sum()

    @property
    def probabilities(self) -> Tensor:
        """The probability of each class, (N, C), in float32 or wider."""
        logits = widen(self.logits)
        return logits.sigmoid() if self.has_independent_classes else logits.softmax(dim=1)


def build_class_table(output: AnyClassificationOutput, metric: str) -> ClassTable:
    """Return *output* as a table.

    Raises `BuilderError`, which names the *metric*, if its shapes do not match.
    """
    if isinstance(output, MultiLabelClassificationOutput):
        check_label_shapes(output, metric)
        return ClassTable(output.output.detach(), output.targets.bool(), None, has_independent_classes=True)
    logits, targets, dim = split_output(output, metric)
    targets = targets.flatten()
    counted = is_counted(targets)
    if dim is None:
        is_one = (targets == 1).unsqueeze(1)
        return ClassTable(logits.reshape(-1, 1), is_one, counted, has_independent_classes=True)
    rows = logits if logits.ndim == 2 else logits.movedim(dim, -1).flatten(0, -2)
    is_target = targets.unsqueeze(1) == torch.arange(rows.shape[1], device=targets.device)
    return ClassTable(rows, is_target, counted, has_independent_classes=False)
