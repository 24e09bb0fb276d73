"""Explanations of errors in the steps of a model: the layer, the shapes and dtypes, and what to change.

Everything is read from the frames of the exception, so that a step costs nothing and no code runs twice.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from traceback import walk_tb
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stages.contracts.errors import BuilderError
from stages.contracts.outputs import is_counted
from stages.contracts.text import join_names
from stages.contracts.user_code import is_user_file, summary
from stages.learner.checks import step_name

MISTAKES = (
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
STEPS = ("train_step", "valid_step")
CLASS_LOSSES = ("cross_entropy", "nll_loss")
LABEL_DTYPES = (torch.int64, torch.uint8)
CHANNELS_FIRST = ("num_features", "num_channels")
SIZES = ("in_features", "in_channels", "input_size", "embed_dim", *CHANNELS_FIRST)
"""Attributes of a layer with the size that one dimension of its input must have."""
NOT_GATHERED = re.compile(r"torch\.Tensor and DTensor|FSDP requires running forward")
DTYPE = re.compile(r"dtype|scalar type|[Ii]nput type")
MAX_PARTS = 8


@dataclass(frozen=True)
class Failure:
    """The place in a step of a model that raised an exception."""

    step: str
    batch: Any
    name: str
    """The name of the innermost layer; empty for the model itself."""
    layer: nn.Module
    function: str
    """The function of `torch.nn.functional` that the layer called; empty for any other function."""
    arguments: Mapping[str, Any]
    """The arguments of the function, or else of the layer, without parameters and buffers."""

    @property
    def place(self) -> str:
        """The name of the layer in a sentence."""
        return f"the layer {self.name}" if self.name else "the model"

    def describe(self) -> Iterator[str]:
        """Yield a line with the layer and its arguments, and one with the batch."""
        layer = f"{self.place}, {type(self.layer).__name__}({self.layer.extra_repr()})"
        if places := [text for text in (layer if self.name else "", self.function) if text]:
            yield f"in {', '.join(places)}: {_describe(self.arguments)}"
        yield f"batch: {_describe(self.batch)}"


@contextmanager
def explain_step_errors(model: nn.Module) -> Iterator[None]:
    """Raise `BuilderError` for an exception that a step of *model* raises in the block, in code of a library.

    The message has the cause, if it is known, and the layer with the shapes and dtypes of its input and of
    the batch. An exception that passed code of the user remains, and receives them as a note.
    """
    try:
        yield
    except MISTAKES as error:
        failure = _find_failure(error, model)
        if failure is None:
            raise
        causes = [cause for cause in _find_causes(failure, str(error)) if cause][:1]
        facts = list(failure.describe())
        if any(is_user_file(frame.f_code.co_filename) for frame, _ in walk_tb(error.__traceback__)):
            error.add_note("\n".join([*causes, *facts]))
            raise
        lines = "\n  ".join([*causes, summary(error), *facts])
        raise BuilderError(f"{step_name(model, failure.step)}: {lines}") from None


def _find_failure(error: BaseException, model: nn.Module) -> Failure | None:
    """Return the place in a step of *model* that raised *error*; None if no step did."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    owners: list[Any] = [next(iter(_arguments(frame).values()), None) for frame in frames]
    steps = [
        number
        for number, frame in enumerate(frames)
        if owners[number] is model and frame.f_code.co_name in STEPS
    ]
    if not steps:
        return None
    names = {id(module): name for name, module in model.named_modules()}
    last = max(number for number, owner in enumerate(owners) if id(owner) in names)
    functions = [frame for frame in frames[last:] if frame.f_globals.get("__name__") == "torch.nn.functional"]
    stored = {id(tensor) for tensor in (*model.parameters(), *model.buffers())} | {id(owners[last])}
    arguments = _arguments(functions[0] if functions else frames[last])
    step = list(_arguments(frames[steps[0]]).values())
    return Failure(
        step=frames[steps[0]].f_code.co_name,
        batch=step[1] if len(step) > 1 else None,
        name=names[id(owners[last])],
        layer=owners[last],
        function=functions[0].f_code.co_name if functions else "",
        arguments={name: value for name, value in arguments.items() if id(value) not in stored},
    )


def _arguments(frame: FrameType) -> dict[str, Any]:
    """Return the arguments that the function of *frame* was called with, unless it has deleted them."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: frame.f_locals[name] for name in names if name in frame.f_locals}


def _find_causes(failure: Failure, message: str) -> Iterator[str]:
    """Yield what is wrong and what to change, most specific first; an empty text if nothing is."""
    if NOT_GATHERED.search(message):
        yield (
            "fsdp gathers the parameters when the model is called. Call self(inputs) in the step, "
            "and not its layers, or use the strategy ddp"
        )
    outputs, labels = failure.arguments.get("input"), failure.arguments.get("target")
    if failure.function in CLASS_LOSSES and isinstance(outputs, Tensor) and isinstance(labels, Tensor):
        yield _explain_label_form(outputs, labels)
        yield _explain_label_values(outputs, labels)
        return
    received = next(iter(failure.arguments.values()), None)
    if isinstance(received, np.ndarray):
        yield f"{failure.place} takes tensors; found a numpy array. Convert the batch with torch.as_tensor"
    if isinstance(received, Tensor):
        yield _explain_dtype(failure, received) if DTYPE.search(message) else ""
        yield _explain_size(failure, received)
        if isinstance(failure.layer, nn.Embedding):
            yield _explain_indices(failure, failure.layer, received)
    if DTYPE.search(message):
        yield _explain_batch_dtype(failure)


def _explain_label_form(outputs: Tensor, labels: Tensor) -> str:
    """Return what is wrong with the shape or the dtype of *labels*."""
    shapes = f"the labels have the shape {tuple(labels.shape)}, and the outputs {tuple(outputs.shape)}"
    if outputs.ndim == 1 and labels.ndim:
        return f"{shapes}; the loss takes a row of outputs per label. Keep the dimension of the classes"
    if labels.shape == outputs.shape:
        return (
            f"{shapes}: convert probabilities with .float(), or pass the classes, as .argmax(1) returns them"
        )
    if labels.ndim == outputs.ndim:
        return f"{shapes}; the loss takes one label per sample. Remove the last dimension with .squeeze(-1)"
    if labels.shape[:1] != outputs.shape[:1]:
        return f"{shapes}: return one output per label. Keep the first dimension of the inputs in each layer"
    if labels.dtype not in LABEL_DTYPES:
        return f"the labels are {_name(labels.dtype)}, and the loss takes int64. Convert them with .long()"
    return ""


def _explain_label_values(outputs: Tensor, labels: Tensor) -> str:
    """Return which of *labels* is not one of the classes of *outputs*."""
    classes = outputs.shape[min(outputs.ndim - 1, 1)]
    counted = labels[is_counted(labels)]
    if not counted.numel() or labels.is_floating_point():
        return ""
    lowest, highest = int(counted.min()), int(counted.max())
    if highest >= classes:
        return (
            f"the largest label is {highest}, and the model has {classes} outputs, for labels up to "
            f"{classes - 1}. Give it at least {highest + 1} outputs, or number the labels from 0"
        )
    if lowest < 0:
        return f"the smallest label is {lowest}. Number the labels from 0; only -100 is ignored"
    return ""


def _explain_dtype(failure: Failure, received: Tensor) -> str:
    """Return in which dtype the layer needs *received*, its input."""
    weight = next(failure.layer.parameters(recurse=False), None)
    if weight is None:
        return ""
    takes_indices = isinstance(failure.layer, nn.Embedding | nn.EmbeddingBag)
    is_right = not received.is_floating_point() if takes_indices else received.dtype == weight.dtype
    if is_right:
        return ""
    needed = torch.int64 if takes_indices else weight.dtype
    remedy = f"Convert it with .to({needed}), in the dataset or the batcher"
    if takes_indices:
        remedy = 'Give it the kind "tokens" in Arrays, which is never normalized, or return it as int64'
    return f"the input of {failure.place} is {_name(received.dtype)}, and it takes {_name(needed)}. {remedy}"


def _explain_size(failure: Failure, received: Tensor) -> str:
    """Return which size of *received*, the input, does not fit the layer."""
    attributes = vars(failure.layer)
    for attribute in SIZES:
        expected = attributes.get(attribute)
        dimension = 1 if attribute in CHANNELS_FIRST else -1
        if attribute == "in_channels":
            dimension = -1 - len(attributes.get("kernel_size", ()))
        if isinstance(expected, int) and -received.ndim <= dimension < received.ndim:
            size = received.shape[dimension]
            if size != expected:
                return (
                    f"{failure.place} has {attribute}={expected}, and its input {tuple(received.shape)} has "
                    f"{size}. Create it with {attribute}={size}, or change its input"
                )
    return ""


def _explain_indices(failure: Failure, layer: nn.Embedding, received: Tensor) -> str:
    """Return which index in *received* is not a row of *layer*."""
    lowest, highest, rows = int(received.min()), int(received.max()), layer.num_embeddings
    if lowest >= 0 and highest < rows:
        return ""
    wrong = f"largest index is {highest}" if highest >= rows else f"smallest index is {lowest}"
    return (
        f"the {wrong}, and {failure.place} has num_embeddings={rows}. Create it with "
        f"num_embeddings={max(highest + 1, rows)}, or number the indices from 0"
    )


def _explain_batch_dtype(failure: Failure) -> str:
    """Return which part of the batch, from the last, has another dtype than the outputs of the model."""
    weight = next(failure.layer.parameters(), None)
    for name, part in reversed(list(_walk(failure.batch))):
        if weight is not None and isinstance(part, Tensor) and part.dtype != weight.dtype:
            return (
                f"the part {name} of the batch is {_name(part.dtype)}, and the model computes in "
                f"{_name(weight.dtype)}. Convert it with .to({weight.dtype}), in the dataset or the batcher"
            )
    return ""


def _describe(value: Any) -> str:
    """Return the shape and the dtype of each tensor in *value*, and the range of integers."""
    parts = [f"{name} {_describe_array(part)}".lstrip() for name, part in _walk(value)]
    return join_names(parts, MAX_PARTS) or f"no tensor, but {type(value).__name__}"


def _describe_array(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return f"{array.shape} {array.dtype} (numpy)"
    text = f"{tuple(array.shape)} {_name(array.dtype)}"
    if array.is_floating_point() or array.is_complex() or array.dtype == torch.bool or not array.numel():
        return text
    return f"{text} from {int(array.min())} to {int(array.max())}"


def _walk(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each tensor and array in *value*; a pair has inputs and targets."""
    if isinstance(value, Tensor | np.ndarray):
        yield name, value
        return
    if isinstance(value, tuple | list):
        names = getattr(
            value, "_fields", ("inputs", "targets") if len(value) == len(STEPS) else range(len(value))
        )
        value = dict(zip(names, value, strict=True))
    elif is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _walk(part, f"{name}.{key}".lstrip("."))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
