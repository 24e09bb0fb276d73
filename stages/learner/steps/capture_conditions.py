"""The conditions under which a training step can be captured in a CUDA graph.

A launch of a graph repeats the kernels of one step on the same tensors, and runs no Python. So neither the
model, nor the update, nor a metric that is measured in the graph may depend on anything but tensors:

* A ``train_step`` that sets an attribute of the model, also a tensor, or draws random numbers on the host, is
  not captured; nor is one that waits for the device. One that depends on something else that changes, such as
  the clock, is not recognized: call ``step("eager")``.
* A batch is captured if all of its tensors are dense and on the device.
* If a model, the optimizer or its options change later, by whatever code, the step is captured again.
* A metric is measured in the graph if its ``measure`` is annotated with ``-> Mean`` and does not wait for the
  device. Other metrics measure a copy of the output, unless their ``reads_output`` is False.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor

from stages.contracts.placement import DeferredBatch, field_values
from stages.devices.rng import find_cudnn_dropout
from stages.learner.assembly import Components
from stages.learner.registered_metric import RegisteredMetric
from stages.learner.resume.training_state import attributes_of
from stages.metrics import Mean
from stages.optim import DeviceGuard

CAPTURE_DEVICES = ("cuda",)
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)
"""Private names of torch: the hooks of a module and of a parameter."""
CONSTANTS = (int, float, str, bytes, type(None))


def find_obstacle(components: Components) -> str | None:
    """Return the reason for which no step of a run can be captured, or None."""
    state, device, ranks = components.state, components.device, components.group.size
    model, guard = state.model.model, state.guard
    kind, optimizer = type(model).__name__, type(state.model.optimizer).__name__
    obstacles = [
        (ranks > 1, f"it has {ranks} ranks"),
        (device.type not in CAPTURE_DEVICES, f"{device} is not a CUDA device"),
        (state.model.needs_closure, f"{optimizer} evaluates a batch several times"),
        (state.model.updates_itself, f"{kind} has a method optimize"),
        (not state.model.reads_flag, f"{optimizer} is not updated by a fused kernel without hooks"),
        (guard.rule.kind == "skip", "the host decides which batches non_finite skips"),
        (not isinstance(guard, DeviceGuard), "the host reads the overflows of accumulated fp16 gradients"),
        (
            components.options.gradient_checkpointing,
            "gradient checkpointing reads the random state in each step",
        ),
        (find_cudnn_dropout(model) is not None, f"{kind} has dropout in an LSTM, GRU or RNN of cuDNN"),
        (_has_hooks(model), f"{kind} has hooks, which a graph does not call"),
        (state.model.hooks.follows_steps, "after_step of a hook may change what a graph repeats"),
    ]
    return next((reason for applies, reason in obstacles if applies), None)


def leaves_of(tree: Any) -> Iterator[Any]:
    """Yield what the tuples, lists, dicts and dataclasses of *tree* contain."""
    parts = _parts(tree)
    if parts is None:
        yield tree
    for part in parts or ():
        yield from leaves_of(part)


def has_only_tensors(tree: Any) -> bool:
    """Return whether *tree* contains only tensors and constants."""
    return all(isinstance(leaf, (Tensor, *CONSTANTS)) for leaf in leaves_of(tree))


def describe_batch(batch: Any) -> Any:
    """Return the structure of *batch*, its constants, and the layouts of its dense tensors on the device.

    The description of a batch with anything else in it is equal to no other. So is that of one with a tensor
    on the host, because its values may select what the step launches.
    """
    if isinstance(batch, Tensor):
        is_dense = batch.layout is torch.strided and not batch.is_nested
        if is_dense and batch.device.type in CAPTURE_DEVICES:
            return batch.shape, batch.stride(), batch.dtype
    if isinstance(batch, DeferredBatch):
        return describe_batch(batch.indices), id(batch.gather)
    if isinstance(batch, CONSTANTS):
        return batch
    parts = _parts(batch)
    if parts is None:
        return object()
    return type(batch), tuple(batch) if isinstance(batch, dict) else None, [*map(describe_batch, parts)]


def describe_model(model: torch.nn.Module) -> dict[str, Any]:
    """Return what a step of *model* may depend on, except for the values of its tensors, by name."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in describe_object(module).items()
    }


def describe_object(value: object) -> dict[str, Any]:
    """Return the attributes of an object: numbers and text, and the identity of all others."""
    return {name: _describe(attribute) for name, attribute in attributes_of(value).items()}


def find_means(metrics: Sequence[RegisteredMetric]) -> dict[str, Any]:
    """Return the metrics, by name, that measure an output and declare that they return a `Mean`."""
    return {metric.name: metric.metric for metric in metrics if _returns_mean(metric)}


def _returns_mean(registered: RegisteredMetric) -> bool:
    methods = registered.methods
    if methods.measure is None or methods.measure_step or registered.telemetry:
        return False
    with suppress(Exception):  # an annotation of a user's may have an unknown name
        return get_type_hints(methods.measure).get("return") is Mean
    return False


def _parts(tree: Any) -> Iterable[Any] | None:
    """Return the parts of a container; None for any other object."""
    if isinstance(tree, tuple | list):
        return tree
    if isinstance(tree, dict):
        return tree.values()
    if is_dataclass(tree) and not isinstance(tree, type):
        return field_values(tree).values()
    return None


def _describe(value: Any) -> Any:
    if isinstance(value, CONSTANTS):
        return [value]  # in a list, a NaN equals itself
    if isinstance(value, Tensor):
        address = value.data_ptr() if value.layout is torch.strided else None
        return id(value), address, value.requires_grad
    if isinstance(value, dict):
        return {str(key): _describe(part) for key, part in value.items()}
    return [*map(_describe, value)] if isinstance(value, list | tuple) else id(value)


def _has_hooks(model: torch.nn.Module) -> bool:
    owners = [*model.modules(), *model.parameters()]
    return any(getattr(owner, name, None) for owner in owners for name in HOOKS)
