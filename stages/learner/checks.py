"""What cannot work, told when the learner is built and not in epoch 3."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

import torch
from torch.nn.parameter import UninitializedParameter

from stages.contracts.errors import BuilderError, RecordError
from stages.contracts.history import Direction, Split
from stages.contracts.outputs import TrainOutput
from stages.contracts.user_code import place_of
from stages.learner.metering import RegisteredMetric
from stages.optim.gradients import Gradients
from stages.records import check_recordable

log = logging.getLogger(__name__)


def check_model(model: Any) -> None:
    """A model has steps. Raises `BuilderError`."""
    missing = [name for name in ("train_step", "valid_step") if not callable(getattr(model, name, None))]
    if missing:
        raise BuilderError(
            f"{type(model).__name__} has no {' and no '.join(missing)}: put a mixin before it, as in "
            "class Net(ClassificationStep, YourModule)"
        )


def check_trainable(model: torch.nn.Module) -> None:
    """Raise `BuilderError` if *model* has no parameters, or one that a lazy module has not created yet."""
    place = place_of(type(model))
    name = f"{type(model).__name__}{place}"
    for path, module in model.named_modules():
        own = module.named_parameters(recurse=False)
        lazy = [each for each, parameter in own if isinstance(parameter, UninitializedParameter)]
        if lazy:
            raise BuilderError(
                f"{name}: the parameter {f'{path}.{lazy[0]}'.lstrip('.')} of a "
                f"{type(module).__name__} is not initialized. Give the module its size, or call the model "
                "once with an example batch before it is trained, for example at the end of __init__"
            )
    if next(model.parameters(), None) is None:
        raise BuilderError(
            f"{name} has no parameters, so nothing can be trained. Assign layers to attributes of the "
            "module, and keep lists of layers in nn.ModuleList and dicts in nn.ModuleDict"
        )


def check_recordable_state(model: torch.nn.Module) -> None:
    """Raise `BuilderError` if a checkpoint cannot hold a parameter, a buffer or a training state."""
    try:
        for name, value in model.state_dict().items():
            if isinstance(value, torch.Tensor):
                check_recordable(value, f"{name} of {type(model).__name__}{place_of(type(model))}: a tensor")
    except RecordError as error:
        raise BuilderError(str(error)) from None


def check_unique_name(registered: RegisteredMetric, others: Iterable[RegisteredMetric], where: str) -> None:
    """No two metrics of one place share a name, and so a log. Raises `BuilderError`."""
    if registered.metric.name in [each.metric.name for each in others]:
        raise BuilderError(f"two metrics of {where} are called {registered.metric.name!r}")


def check_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module, batches_per_step: int) -> None:
    """*optimizer* updates this *model*, and in a way that the loop can drive. Raises `BuilderError`."""
    own = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in own for parameter in held)
    if foreign:
        raise BuilderError(
            f"{foreign} of the {len(held)} parameters of the {type(optimizer).__name__} are not the model's: "
            "make it with model.parameters() of the model that is trained"
        )
    if not isinstance(optimizer, torch.optim.LBFGS):
        return
    if batches_per_step > 1:
        raise BuilderError(
            f"L-BFGS evaluates one batch several times, so it cannot accumulate over {batches_per_step}: "
            "use one device, no accumulation, and a larger batch"
        )
    if hasattr(model, "optimize"):
        raise BuilderError("a model with a method optimize does its own step, which L-BFGS cannot drive")


def has_gradients(step: TrainOutput[Any]) -> bool:
    """Return whether *step* can change a weight; a step of no samples counts as one."""
    return step.item.size == 0 or any(gradient is not None for gradient in step.gradients)


def missing_gradients(model: Any, gradients: Gradients, *, location: str) -> BuilderError:
    """Return the error for a first update, at *location*, without a gradient for any parameter."""
    return BuilderError(
        f"{location}: no parameter of {type(model).__name__} would be trained, because all {len(gradients)} "
        "gradients are None. The loss must depend on the model's own parameters: compute it without "
        "detach(), torch.no_grad() or a copy of the model, and return backward(self, loss) from train_step"
    )


def check_monitored_metrics(rule: Any, metrics: Mapping[Split, Iterable[RegisteredMetric]]) -> None:
    """Check that what *rule* decides by is measured, as a number that a resumed run has too.

    Of a composed rule each part is checked. Raises `BuilderError`, also for a schedule that takes the worst
    values of its metric for the best.
    """
    for part in getattr(rule, "rules", ()):
        check_monitored_metrics(part, metrics)
    if hasattr(rule, "rules"):
        return
    known = {
        (split, each.metric.name): each.metric
        for split, registered in metrics.items()
        for each in registered
        if each.numeric and not each.telemetry
    }
    name = type(getattr(rule, "scheduler", rule)).__name__
    for split, metric in sorted(getattr(rule, "needs", set())):
        if (split, metric) not in known:
            there = ", ".join(f"{split} {metric}" for split, metric in sorted(known)) or "none"
            raise BuilderError(
                f"{name} decides by the {split} {metric!r}, which is not registered as a number; there: "
                f"{there}. Register it (metric_{split}_numeric, or fit.metrics in params.yaml), or decide "
                "by another (fit.keep and fit.early_stopping there)"
            )
        _check_direction(rule, name, f"{split} {metric!r}", getattr(known[split, metric], "better", None))


def _check_direction(rule: Any, name: str, metric: str, better: Any) -> None:
    """Refuse a schedule that takes the worst values of *metric* for the best; warn of any other rule."""
    direction = getattr(rule, "direction", None)
    if None in (better, direction) or better == direction:
        return
    message = (
        f"{name} takes the {direction} value for the best, but of the {metric} the {better} is the best: "
    )
    if hasattr(rule, "monitored"):
        mode = "min" if better is Direction.LOWEST else "max"
        raise BuilderError(f"{message}make it with mode={mode!r}, or monitor another metric")
    log.warning("%sset its direction to %s", message, better)


def check_metric_inputs(model: Any, metrics: Mapping[Split, Iterable[RegisteredMetric]]) -> None:
    """Each metric measures what the model's step says it returns; silent where a step says nothing.

    Raises `BuilderError`.
    """
    for split, step in ((Split.TRAIN, "train_step"), (Split.VALID, "valid_step")):
        returned = _item_type(getattr(model, step))
        for each in metrics[split]:
            measures = getattr(each.metric, "measures", object)
            if returned is not None and not issubclass(returned, measures):
                raise BuilderError(
                    f"metric {each.metric.name!r} measures {each.measures}, but "
                    f"{type(model).__name__}.{step} returns {returned.__name__}: register another metric"
                )


def _item_type(step: Any) -> type | None:
    """The item of a step by its annotation: ``-> Item``, or ``-> TrainOutput[Item]``."""
    try:
        returned = get_type_hints(step).get("return")
    except Exception:  # noqa: BLE001  a user's annotation may name what is not there
        return None
    arguments = get_args(returned)
    item = arguments[0] if arguments else returned
    return item if isinstance(item, type) and item is not object else None
