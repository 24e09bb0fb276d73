"""Logits and the class of each sample, in the shapes that every metric of classes takes.

A model with one class per sample or position gives logits (B, C, …) for targets (B, …), as torch's cross
entropy takes them; a `SequenceOutput` has its classes last, (B, T, V) for (B, T). A binary model may give one
logit, (B,) or (B, 1), for targets 0 and 1 of either shape; a logit above 0 predicts class 1.

A target of -100, which torch's cross entropy ignores, is not measured. Of equal logits the one with the
lowest index counts as the highest. A row of logits with a NaN predicts no class and is never right.
"""

from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput, MultiLabelClassificationOutput, SequenceOutput
from stages.metrics.mean import Mean

Labelled = ClassificationOutput | SequenceOutput
"""An output with one class per sample, or per token."""

IGNORED = -100
"""The target that torch's cross entropy ignores by default."""
NO_CLASS = torch.iinfo(torch.int64).min
"""The prediction of a row with a NaN; equal to no target."""


def labelled(output: Labelled, metric: str) -> tuple[Tensor, Tensor, int | None]:
    """Return the logits off the graph, the targets, and the dimension of the classes.

    The dimension is None for one logit per target; then logits and targets have one shape. Raises
    `BuilderError`, naming the *metric*, if the shapes do not fit or targets of one logit are soft.
    """
    if isinstance(output, SequenceOutput):
        logits, dim = output.logits.detach(), -1
    else:
        logits, dim = output.output.detach(), 1
    targets, shape = output.targets, logits.shape
    if len(shape) > 1 and shape[dim] > 1:
        if targets.shape != (shape[:-1] if dim == -1 else shape[:1] + shape[2:]):
            _refuse_shapes(logits, targets, metric)
        return logits, targets, dim
    single = logits if len(shape) == 1 else logits.squeeze(dim)
    if targets.ndim == single.ndim + 1 and targets.shape[dim] == 1:
        targets = targets.squeeze(dim)
    if targets.shape != single.shape:
        _refuse_shapes(logits, output.targets, metric)
    if targets.is_floating_point():
        _refuse_soft(targets, metric)
    return single, targets, None


def likeliest(output: Labelled, metric: str) -> tuple[Tensor, Tensor]:
    """Return the predicted class for each target, and the targets; `NO_CLASS` for a row with a NaN."""
    logits, targets, dim = labelled(output, metric)
    if dim is None:
        return (logits > 0).long().masked_fill_(logits.isnan(), NO_CLASS), targets
    return highest(logits, dim), targets


def highest(logits: Tensor, dim: int) -> Tensor:
    """Return the index of the highest of *logits* along *dim*; `NO_CLASS` if one is NaN."""
    if logits.ndim == 2 and _is_known_without_nan(logits):
        return torch.from_numpy(logits.numpy().argmax(dim))
    values, classes = logits.max(dim)  # of a row with a NaN the maximum is NaN
    return classes.masked_fill_(values.isnan(), NO_CLASS)


def top(logits: Tensor, k: int, dim: int) -> Tensor:
    """Return a mask of the *k* highest of *logits* along *dim*; nothing of a row with a NaN."""
    least = logits.topk(k, dim).values.narrow(dim, k - 1, 1)
    chosen = logits >= least
    if _is_known_without_nan(logits):
        rows = logits.numel() // logits.shape[dim]
        if np.count_nonzero(chosen.numpy()) == k * rows:
            return chosen
    above, tied = logits > least, logits == least
    free = k - above.sum(dim, keepdim=True)
    chosen = above | (tied & (tied.cumsum(dim) <= free))  # topk itself breaks ties in any order
    return chosen & ~logits.isnan().any(dim, keepdim=True)


def _is_known_without_nan(logits: Tensor) -> bool:
    """Return whether *logits* have no NaN, if a microsecond is enough to find out; otherwise False."""
    if not (logits.is_cpu and logits.dtype is torch.float32 and logits.is_contiguous()):
        return False
    flat = logits.numpy().ravel()
    return bool(flat.dot(flat) >= 0)  # a sum of squares is NaN only if one of them is


def share(hits: Tensor, targets: Tensor, pad_token: int | None) -> Mean:
    """Return the *hits* among the *targets* in percent, without ignored targets and the *pad_token*."""
    real = targets != IGNORED
    if pad_token is not None:
        real &= targets != pad_token
        hits = hits & real
    if hits.is_cpu:  # NumPy counts in half of torch's time
        return Mean(100.0 * np.count_nonzero(hits.numpy()), int(np.count_nonzero(real.numpy())))
    return Mean.sum(hits.sum(), real.sum(), 100.0)


def check_labels(output: MultiLabelClassificationOutput, metric: str) -> None:
    """Raise `BuilderError`, naming the *metric*, unless there is a target for each logit."""
    if output.output.shape != output.targets.shape:
        raise BuilderError(
            f"metric {metric!r} compares each label's logit with its target, and the model's step gives "
            f"logits {tuple(output.output.shape)} for targets {tuple(output.targets.shape)}: give both the "
            "shape (B, labels)"
        )


def is_soft(targets: Tensor) -> bool:
    """Return whether some of *targets*, of one logit each, is neither 0 nor 1 nor ignored."""
    return not ((targets == 0) | (targets == 1) | (targets == IGNORED)).all()


def _refuse_shapes(logits: Tensor, targets: Tensor, metric: str) -> NoReturn:
    if targets.shape == logits.shape:
        advice = "of soft or one-hot targets measure the class, targets.argmax(1), with Adapted"
    else:
        advice = "reshape one of them in the model's step"
    raise BuilderError(
        f"metric {metric!r} takes logits (B, C, …) for targets (B, …), tokens (B, T, V) for (B, T), or one "
        f"logit, (B,) or (B, 1); the model's step gives logits {tuple(logits.shape)} for targets "
        f"{tuple(targets.shape)}: {advice}"
    )


def _refuse_soft(targets: Tensor, metric: str) -> None:
    """Raise `BuilderError` for soft targets on a CPU; elsewhere reading them would wait for the device."""
    if targets.is_cpu and is_soft(targets):
        raise BuilderError(
            f"metric {metric!r} takes targets of 0 and 1 for one logit, and the model's step gives others, "
            f"from {targets.min().item():g} to {targets.max().item():g}: round them, with Adapted, or "
            "register another metric"
        )
