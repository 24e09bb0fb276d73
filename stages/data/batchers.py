"""Batchers, which combine samples to the batch that a model receives."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from stages.contracts import plugins
from stages.contracts.config import Use
from stages.contracts.errors import BuilderError
from stages.contracts.outputs import IGNORED_TARGET
from stages.data.config import BATCHERS
from stages.data.datasets import Samples, to_tensor
from stages.data.storage import Normalization
from stages.data.trees import Ragged, Tree, Views, flatten, map_leaves, shorten, unflatten
from stages.devices.rng import preserve_random_state, seed_sample

MAX_FLOAT32_MEAN = 256
"""The largest mean, in standard deviations, that float32 subtracts: the error is then at most 3e-5 of one."""
FLOAT32 = torch.finfo(torch.float32)
SMALL_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)


class Batch(NamedTuple):
    """The input of the built-in models for *B* samples; unpacks as ``inputs, targets``."""

    inputs: Tree
    """(B, …), float32, or int64 for tokens; a tuple or dict of tensors as in a sample, or `Views` of such."""
    targets: Tree
    """(B,) or (B, …), a tuple or dict of tensors, or None; a list of B tensors for ragged rows."""


class Batcher(Protocol):
    """A function from samples to a batch. Burn's `Batcher`."""

    def batch(self, items: Sequence[Any]) -> Any:
        """Return one batch of *items*, on the CPU."""


class NormalizeBatcher:
    """A batcher that converts inputs to float32, subtracts *mean* and divides by *std*.

    Each is a number, or a sequence with one for each index of the first axis of a sample: for each channel of
    an image (C, H, W), or each column of a table (F,).

    If a mean is more than 256 times its *std*, both operations are in float64, where float32 would lose the
    differences between the samples; also if float32 lacks digits of 1 / *std*.

    It has two halves, so that a loader can copy the samples to an accelerator in their own dtype, such as
    uint8, and convert them there.

    Args:
        mean: one for inputs that are a tensor; a dict of them by the short names of the leaves for a tuple or
            a dict. None leaves tokens as they are, int64.
        std: the same.
        ragged: ``list`` for a tensor of each sample, or ``pad`` for one tensor, filled up with 0 for numbers
            and -100 for integers.

    Raises:
        BuilderError: If a *std* is not a finite number above 0.
    """

    def __init__(
        self,
        mean: float | Sequence[float] | Mapping[str, Any] | None = 0.0,
        std: float | Sequence[float] | Mapping[str, Any] | None = 1.0,
        ragged: Literal["list", "pad"] = "list",
    ) -> None:
        self.ragged = ragged
        self._parts: dict[str, NormalizeBatcher] = {}
        self._is_identity = mean is None or std is None
        self._channels: ChannelScale | None = None
        if isinstance(mean, Mapping) and isinstance(std, Mapping):
            self._parts = {name: NormalizeBatcher(mean[name], std[name]) for name in mean}
        elif not isinstance(mean, Mapping | None) and not isinstance(std, Mapping | None):
            self._set_numbers(mean, std)

    def _set_numbers(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        means, divisors = (
            torch.tensor(numbers, dtype=torch.float64, device="cpu") for numbers in (mean, std)
        )
        if not (bool((divisors > 0).all()) and bool(divisors.isfinite().all())):
            raise BuilderError(
                f"batcher: std must be finite and above 0; found {std}. Divide equal values by 1"
            )
        if isinstance(mean, Sequence) or isinstance(std, Sequence):
            self._channels = ChannelScale(mean, std)
        else:
            self._scale = 1.0 / std
            self._offset = torch.tensor(-mean / std, dtype=torch.float32, device="cpu")
            self._offsets: dict[torch.device, Tensor] = {}
        is_large, scales = means.abs() > MAX_FLOAT32_MEAN * divisors, 1.0 / divisors
        is_rounded = (scales < FLOAT32.tiny) | (scales > FLOAT32.max)
        self._exact = (means, divisors) if bool((is_large | is_rounded).any()) else None

    def batch(self, items: Sequence[Any]) -> Batch:
        """Return the inputs as (B, …) float32, with unchanged targets; masks and tokens are int64."""
        return self.finish(self.gather(items))

    def gather(self, items: Sequence[Any]) -> Batch:
        """Return the inputs as (B, …) in the dtype of the samples."""
        samples = Samples.of(items)
        if isinstance(samples.targets, Tensor):
            return Batch(samples.inputs, samples.targets)
        return Batch(samples.inputs, map_leaves(self._arrange, samples.targets))

    def _arrange(self, leaf: Any) -> Any:
        if not isinstance(leaf, Ragged):
            return leaf
        if self.ragged == "pad":
            return pad_rows(leaf)
        return list(torch.split(leaf.values, leaf.lengths.tolist()))

    def finish(self, batch: Batch | Samples) -> Batch:
        """Return gathered samples with normalized inputs, float32, and masks, int64, on their device."""
        targets = batch.targets
        if not isinstance(targets, Tensor) or targets.ndim > 2:
            targets = map_leaves(_widen_mask, targets)
        return Batch(self._normalize_tree(batch.inputs), targets)

    def _normalize_tree(self, inputs: Tree) -> Tree:
        if isinstance(inputs, Tensor) and not self._parts:
            return inputs.long() if self._is_identity else self._normalize(inputs)
        if isinstance(inputs, Views):
            return Views(map(self._normalize_tree, inputs))
        leaves = {name: self._normalize_leaf(name, leaf) for name, leaf in flatten(inputs, "inputs").items()}
        return unflatten(leaves, "inputs")

    def _normalize_leaf(self, name: str, leaf: Tensor) -> Tensor:
        part = self._parts.get(shorten(name))
        if part is None:
            raise BuilderError(
                f"the batcher has no mean and std for the inputs {shorten(name)!r}, only for "
                f"{', '.join(self._parts) or 'a tensor'}. Pass dicts with its name"
            )
        normalized: Tensor = part._normalize_tree(leaf)  # noqa: SLF001  the same class
        return normalized

    def _normalize(self, stored: Tensor) -> Tensor:
        if self._exact is not None:
            if self._channels is not None:
                self._channels.check(stored)
            return self._normalize_exactly(stored, *self._exact)
        inputs = stored.clone() if stored.dtype is torch.float32 else stored.float()  # faster than to()
        if self._channels is not None:
            return self._channels.apply(inputs)
        offset = self._offset if inputs.is_cpu else self._offset_on(inputs.device)
        torch.add(offset, inputs, alpha=self._scale, out=inputs)  # one pass
        return inputs

    @staticmethod
    def _normalize_exactly(stored: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Return *stored* in float32, normalized in float64, which MPS lacks."""
        wide = stored.cpu() if stored.device.type == "mps" else stored
        shape = (-1, *[1] * (stored.ndim - 2)) if mean.ndim or std.ndim else ()
        mean, std = (numbers.expand_as(mean + std).reshape(shape).to(wide.device) for numbers in (mean, std))
        return ((wide.to(torch.float64) - mean) / std).to(torch.float32).to(stored.device)

    def _offset_on(self, device: torch.device) -> Tensor:
        if device not in self._offsets:
            self._offsets[device] = torch.full((), float(self._offset), dtype=torch.float32, device=device)
        return self._offsets[device]


class ChannelScale:
    """A scale and an offset for each channel, the second axis of a batch, on every device that needs them.

    Raises `BuilderError` if *mean* and *std* do not have the same number of values.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        means, divisors = (
            torch.tensor(numbers, dtype=torch.float64, device="cpu").reshape(-1) for numbers in (mean, std)
        )
        if len(means) != len(divisors) and 1 not in (len(means), len(divisors)):
            raise BuilderError(
                f"mean and std must have the same number of values; found {len(means)} and {len(divisors)}"
            )
        offset = -means / divisors
        scale = (1.0 / divisors).expand_as(offset)
        self._numbers = {torch.device("cpu"): (scale.float(), offset.float())}

    def apply(self, inputs: Tensor) -> Tensor:
        """Multiply *inputs*, (B, C, …) float32, by the scale, add the offset, and return them.

        Two operations, each rounded, have the same bits on every device.
        """
        self.check(inputs)
        scale, offset = self._numbers_on(inputs.device)
        shape = (-1, *[1] * (inputs.ndim - 2))
        return inputs.mul_(scale.view(shape)).add_(offset.view(shape))

    def check(self, inputs: Tensor) -> None:
        """Raise `BuilderError` if *inputs*, (B, C, …), do not have a channel for each scale."""
        count = len(self._numbers[torch.device("cpu")][0])
        if inputs.ndim < 2 or inputs.shape[1] != count:
            raise BuilderError(
                f"the batcher normalizes {count} channels or columns, the first axis of a sample; found "
                f"samples of shape {tuple(inputs.shape[1:])}. Run load-data again, or correct mean and std"
            )

    def _numbers_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._numbers:
            scale, offset = self._numbers[torch.device("cpu")]
            self._numbers[device] = scale.to(device), offset.to(device)
        return self._numbers[device]


def pad_rows(ragged: Ragged) -> Tensor:
    """Return the rows, (B, most rows, …), filled up with 0, or with -100 if they are integers."""
    fill = 0 if ragged.values.is_floating_point() else IGNORED_TARGET
    is_row = torch.arange(int(ragged.lengths.max()), device="cpu") < torch.from_numpy(ragged.lengths)[:, None]
    padded: Tensor = ragged.values.new_full((*is_row.shape, *ragged.values.shape[1:]), fill)
    padded[is_row] = ragged.values
    return padded


def _widen_mask(targets: Any) -> Any:
    """Return masks (B, H, W) of small integers as int64, which losses take; others unchanged."""
    is_mask = isinstance(targets, Tensor) and targets.ndim == 3 and targets.dtype in SMALL_INTEGERS
    return targets.long() if is_mask else targets


class GatherBatcher:
    """The first half of a `NormalizeBatcher`, without its numbers."""

    def __init__(self, batcher: NormalizeBatcher) -> None:
        self.batch = batcher.gather


@dataclass(frozen=True)
class FunctionBatcher:
    """A batcher that calls *function* with the items of each batch, as PyTorch calls a ``collate_fn``."""

    function: Callable[[Sequence[Any]], Any]

    def batch(self, items: Sequence[Any]) -> Any:
        """Return the result of the function for *items*."""
        return self.function(items)


def is_per_sample(batcher: Batcher) -> bool:
    """Return whether *batcher* makes the same rows of a sample in any batch.

    It does if it has a true attribute ``per_sample``, is built in and does not pad, or is torch's
    `default_collate`. Any other one may look at the other samples, as for a mean over the batch.
    """
    function: Any = batcher.function if isinstance(batcher, FunctionBatcher) else batcher
    function = function.func if isinstance(function, partial) else function
    if isinstance(batcher, NormalizeBatcher) and batcher.ragged == "pad":
        return False
    is_known = type(batcher) in (NormalizeBatcher, GatherBatcher) or function is default_collate
    return is_known or getattr(function, "per_sample", False) is True


def as_batcher(batcher: Batcher | Callable[[Sequence[Any]], Any]) -> Batcher:
    """Return *batcher*, or a batcher that calls it if it is a function.

    Raises `BuilderError` if it is neither.
    """
    if isinstance(batcher, type):
        plugins.check_object(batcher, "batcher", "")
    match batcher:
        case object(batch=batch) if callable(batch):
            return batcher
    if callable(batcher):
        return FunctionBatcher(batcher)
    raise BuilderError(
        "the batcher must be a function or have a method batch(items); found the type "
        f"{type(batcher).__name__}"
    )


def build_batcher(
    use: Use, normalization: Normalization | Mapping[str, Normalization | None] | None
) -> Batcher:
    """Return the batcher that *use* names: an instance of a class, or a function of the items of a batch.

    A class is built with the arguments in *use*, and with ``mean`` and ``std`` of *normalization* if it takes
    them: dicts for several leaves, and None for tokens. A function receives the arguments at each call.
    Raises `PluginError` if it cannot be built.
    """
    offered = {field: _read_field(normalization, field) for field in ("mean", "std")}
    batcher: Batcher = plugins.build_callable("batcher", use, BATCHERS, as_batcher, offered)
    return batcher


def _read_field(normalization: Any, field: str) -> Any:
    if isinstance(normalization, Mapping):
        return {name: _read_field(numbers, field) for name, numbers in normalization.items()}
    return normalization and vars(normalization)[field]


MEASURED_ROWS = 4096
"""The number of samples that are measured at a time, which bounds the memory."""


class PaddedBatch(NamedTuple):
    """*B* sequences of at most *T* elements: token ids, or vectors of *F* numbers."""

    inputs: Tensor
    """(B, T) int64 or float32, or (B, T, F)."""
    targets: Tree
    """(B,) or (B, …), or (B, T) with -100 at padded positions; None without targets."""
    lengths: Tensor
    """The number of elements of each sequence, (B,), int64."""
    mask: Tensor
    """True for elements and False for padding, (B, T)."""


class PadBatcher:
    """A batcher that pads sequences to the longest one of the batch.

    A sequence ends with its last element that is not *pad_value*, so that it may be stored with padding, as
    the rows of an array (N, T) or (N, T, F) are. Inputs are not normalized.

    Args:
        pad_value: the id or the number of padded positions, which no sequence ends with.
        target_pad: the padded positions of targets that are sequences of integers.
    """

    def __init__(self, pad_value: float = 0, target_pad: int = IGNORED_TARGET) -> None:
        self.pad_value = pad_value
        self.target_pad = target_pad

    def batch(self, items: Sequence[Any]) -> PaddedBatch:
        """Return the batch of *items*: inputs (T,) or (T, F), and targets of any shape or (T,)."""
        targets: Tree = None
        are_aligned = True
        if isinstance(items, Samples):
            stored, targets = items.inputs, items.targets
        else:
            is_pair = not isinstance(items[0], Tensor | Mapping)
            inputs, *answers = zip(*items, strict=True) if is_pair else (items,)
            if isinstance(inputs[0], Mapping):
                raise _no_sequence("a dict")
            stored = pad_sequence(list(inputs), batch_first=True, padding_value=self.pad_value)
            if answers:
                rows = [*map(to_tensor, answers[0])]
                targets = self._stack_targets(rows)
                pairs = zip(rows, inputs, strict=True)
                are_aligned = all(row.shape[:1] == sample.shape[:1] for row, sample in pairs)
        lengths = self.measure(stored)
        longest = max(1, int(lengths.max()))
        mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
        is_integer = isinstance(targets, Tensor) and not targets.is_floating_point()
        if are_aligned and is_integer and targets.shape[1:2] == stored.shape[1:2]:  # a class for each element
            targets = targets[:, :longest].masked_fill(~mask, self.target_pad)
        dtype = torch.float32 if stored.is_floating_point() else torch.int64
        return PaddedBatch(stored[:, :longest].to(dtype), targets, lengths, mask)

    def measure(self, inputs: Tensor) -> Tensor:
        """Return the length of each of *inputs*, (B, T) or (B, T, F), without its padding: (B,), int64.

        Raises `BuilderError` if the inputs are not sequences.
        """
        if not isinstance(inputs, Tensor) or inputs.ndim < 2:
            raise _no_sequence("one number" if isinstance(inputs, Tensor) else "several arrays")
        is_element = (
            (inputs != self.pad_value).flatten(2).any(2) if inputs.ndim > 2 else inputs != self.pad_value
        )
        positions = torch.arange(1, inputs.shape[1] + 1, device=inputs.device)
        return (is_element * positions).amax(1)

    def _stack_targets(self, targets: list[Tensor]) -> Tensor:
        if targets[0].ndim == 1 and not targets[0].is_floating_point():
            return pad_sequence(targets, batch_first=True, padding_value=self.target_pad)
        return torch.stack(targets)


def _no_sequence(kind: str) -> BuilderError:
    return BuilderError(
        f"the batcher 'pad' takes sequences, (T,) or (T, F); found inputs of {kind}. Set fit.batcher to "
        "normalize"
    )


def measure_lengths(dataset: Any, batcher: Any) -> Tensor:
    """Return the length of the input of each sample, (N,), for batches of similar length.

    It is the attribute ``lengths`` of *dataset* if there is one, the result of the batcher's ``measure`` for
    a dataset in memory, and otherwise ``len`` of each input, for which every sample is read once.
    Raises `BuilderError` if an input has no length.
    """
    match dataset, batcher:
        case object(lengths=lengths), _:
            return to_tensor(lengths)
        case object(inputs=Tensor() as inputs), object(measure=measure):
            return torch.cat([measure(rows) for rows in torch.split(inputs, MEASURED_ROWS)])
    with preserve_random_state():
        return torch.tensor([_read_length(dataset, index) for index in range(len(dataset))], device="cpu")


def _read_length(dataset: Any, index: int) -> int:
    seed_sample(0, index)  # a dataset may draw random numbers
    sample = dataset[index]
    value = sample if isinstance(sample, Tensor | Mapping) else sample[0]
    with suppress(TypeError):
        if not isinstance(value, Mapping):
            return len(value)
    raise BuilderError(
        f"batches of similar length need sequences as inputs; sample {index} has none: {value!r:.40}. "
        "Set fit.bucket to false"
    )
