"""The outputs of steps: the loss, its weight and the inputs of metrics, for a batch of *B* samples.

The **weight** of an output is the divisor of its loss: the number of samples or tokens, or the sum of their
weights, that the loss is the mean over. The losses and gradients of several batches, or of the shares of
several ranks, are combined by it, so that the result is that of one large batch. A batch of weight 0 counts
nothing and trains nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from stages.contracts.errors import BuilderError

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item", bound="Output")
Weight: TypeAlias = "float | Tensor"
"""The divisor of a loss, at least 0: a number, or a scalar tensor."""

IGNORED_TARGET = -100
"""The target that `torch.nn.functional.cross_entropy` ignores by default."""


class Output(Protocol):
    """The attributes that every output needs, also a user's own.

    It may also have a ``weight``, the divisor of its loss if that is not the number of samples.
    """

    @property
    def loss(self) -> "Tensor":
        """The mean loss of the batch, a scalar."""

    @property
    def size(self) -> int:
        """The number of samples in the batch."""


def weight_of(item: Output) -> Weight:
    """Return the weight of *item*: its attribute ``weight``, or the number of its samples if that is None.

    It is a number on a CPU; on an accelerator it may be a tensor, which is not read. Raises `BuilderError` if
    it is negative or not finite.
    """
    weight: Any = getattr(item, "weight", None)
    if weight is None:
        return item.size
    if not getattr(weight, "is_cpu", True):
        on_device: Tensor = weight
        return on_device
    number = float(weight)
    if not (number >= 0 and math.isfinite(number)):
        raise BuilderError(
            f"the weight of a {type(item).__name__} must be the divisor of its loss, a number of at least 0; "
            f"found {number:g}. Set it to the number of samples or tokens that the loss is the mean over, or "
            "to the sum of their weights"
        )
    return as_count(number)


def as_count(number: float) -> float:
    """Return *number* as an `int` if it is a whole number, as counts of samples are."""
    return int(number) if number == number // 1 else number


def is_counted(targets: "Tensor", pad_token: int | None = None) -> "Tensor":
    """Return a mask of *targets*: False for those that are ignored, -100 or *pad_token*."""
    if not targets.is_floating_point():
        targets = targets.long()  # torch converts -100 to uint8, which has 156 for it
    mask = targets != IGNORED_TARGET
    return mask if pad_token is None else mask & (targets != pad_token)


def count_targets(targets: "Tensor") -> "int | Tensor":
    """Return the number of *targets* that are not ignored; on an accelerator a scalar tensor."""
    count = is_counted(targets).count_nonzero()
    return int(count) if targets.is_cpu else count


class _Batch:
    """The base of outputs with targets for each sample."""

    targets: "Tensor"

    @property
    def size(self) -> int:
        """The number of samples, B."""
        return self.targets.shape[0]


@dataclass(frozen=True)
class _TensorOutput(_Batch):
    """The base of outputs with a tensor for the targets of each batch."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    output: "Tensor"
    targets: "Tensor"
    weight: "Weight | None" = None
    """The divisor of the loss, such as the number of targets that are not ignored; None: the number of
    samples."""


class ClassificationOutput(_TensorOutput):
    """Classification with one class per sample or position. Burn's output of the same name.

    ``loss`` is the mean loss, a scalar, and ``weight`` the divisor of it, by default the number of samples.
    ``output`` has the logits, (B, C) or (B, C, …); of a binary model with one logit, (B,) or (B, 1).
    ``targets`` has the class of each sample or position, (B,) or (B, …), integers; -100 is ignored. For a
    model with one logit: 0 or 1, integers or floats, (B,) or (B, 1).
    """


class MultiLabelClassificationOutput(_TensorOutput):
    """Classification with any number of labels per sample. Burn's output of the same name.

    ``loss`` and ``weight`` are as in `ClassificationOutput`.
    ``output`` has the logits, and ``targets`` 1 for each label of a sample and 0 otherwise, both (B, labels).
    """


class RegressionOutput(_TensorOutput):
    """Regression with one or more numbers per sample. Burn's output of the same name.

    ``loss`` and ``weight`` are as in `ClassificationOutput`.
    ``output`` has the predictions, (B, …), and ``targets`` the target values, of the same shape.
    """


@dataclass(frozen=True)
class SequenceOutput(_Batch):
    """A sequence of *T* tokens from a vocabulary of *V*. Burn's output of the same name."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    logits: "Tensor"
    """The logits, (B, T, V)."""
    predictions: "Tensor | None"
    """The decoded tokens, (B, any length), integers; None for the tokens with the highest logits."""
    targets: "Tensor"
    """The target tokens, (B, T), integers."""
    weight: "Weight | None" = None
    """The divisor of the loss, such as the number of tokens that are not padding; None: the number of
    sequences."""


@dataclass(frozen=True)
class DetectionOutput:
    """Detection of any number of boxes in each image."""

    loss: "Tensor"
    """The mean loss, a scalar."""
    predictions: "Sequence[Mapping[str, Tensor]]"
    """For each image ``boxes`` (n, 4) of left, top, right and bottom, ``scores`` (n,) and ``labels`` (n,)."""
    targets: "Sequence[Mapping[str, Tensor]]"
    """For each image ``boxes`` and ``labels``."""
    weight: "Weight | None" = None
    """The divisor of the loss, such as the number of boxes; None: the number of images."""

    @property
    def size(self) -> int:
        """The number of images."""
        return len(self.targets)


@dataclass(frozen=True)
class TrainOutput(Generic[Item]):
    """The result of a training step. Burn's output of the same name."""

    model: Any
    """The module that the gradients belong to."""
    gradients: "Sequence[Tensor | None]"
    """One gradient for each of ``model.parameters()``, in order; None if the loss does not depend on it."""
    item: Item
    """The item that metrics measure."""
