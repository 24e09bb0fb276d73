"""Checks of a model, an optimizer and metrics when the learner is built, and of the steps of the model.

An error of a step names the step with its file and line.
"""

import logging
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from stages.contracts.errors import BuilderError, RecordError
from stages.contracts.fields import describe_lbfgs_conflict, describe_portable_optimizer_conflict
from stages.contracts.history import Direction, Split
from stages.contracts.outputs import TrainOutput, weight_of
from stages.contracts.plugins import OptionalAttributes, check_object
from stages.contracts.user_code import place_of
from stages.learner.options import LearnerOptions
from stages.learner.registered_metric import RegisteredMetric
from stages.optim import RunLength
from stages.optim.gradients import Gradients
from stages.records import check_recordable
from stages.runs.retention import KeepBest

log = logging.getLogger(__name__)

RETURN = (
    "return TrainOutput(self, backward(self, loss), item), where item has loss and size, such as "
    "ClassificationOutput(loss, logits, targets)"
)
ITEM = (
    "return an item that has loss and size, such as ClassificationOutput(loss, logits, targets), or a "
    "dataclass of your own with a property size, the number of samples in the batch"
)
LOADER = "DataLoader(dataset, batch_size=32)"
SEQUENCES = (list, tuple)
SPARSE = "Create the layer with sparse=False, or use adagrad without weight decay"


def check_model(model: Any) -> None:
    """Raise `BuilderError` if *model* is a class, or lacks ``train_step`` or ``valid_step``."""
    if isinstance(model, type):
        check_object(model, "model", "")
    missing = [name for name in ("train_step", "valid_step") if not callable(getattr(model, name, None))]
    if missing:
        raise BuilderError(
            f"{type(model).__name__} has no {' and no '.join(missing)}: put a mixin before it, as in "
            "class Net(ClassificationStep, YourModule)"
        )


def check_reason(rule: Any, reason: Any) -> None:
    """Raise `BuilderError` unless *reason*, which the early stopping *rule* returned, is a text or None."""
    if not (reason is None or (isinstance(reason, str) and reason)):
        raise BuilderError(
            f"{type(rule).__name__}.reason{place_of(type(rule).reason)} returned {reason!r}: return a text "
            "with the reason to stop the run, or None to continue"
        )


def check_trainable(model: torch.nn.Module) -> None:
    """Raise `BuilderError` if *model* has no parameters, or one that a lazy module has not created yet."""
    for path, module in model.named_modules():
        parameters = module.named_parameters(recurse=False)
        lazy = [name for name, parameter in parameters if isinstance(parameter, UninitializedParameter)]
        if lazy:
            raise BuilderError(
                f"{_name_class(model)}: the parameter {f'{path}.{lazy[0]}'.lstrip('.')} of a "
                f"{type(module).__name__} is not initialized. Pass the size to the module, or call the model "
                "once with an example batch before training, for example at the end of __init__"
            )
    if next(model.parameters(), None) is None:
        raise BuilderError(
            f"{_name_class(model)} has no parameters to train. Assign layers to attributes of the "
            "module, and keep lists of layers in nn.ModuleList and dicts in nn.ModuleDict"
        )


def check_recordable_state(model: torch.nn.Module) -> None:
    """Raise `BuilderError` if a checkpoint cannot hold a parameter, a buffer or a training state."""
    for name, value in model.state_dict().items():
        try:
            if isinstance(value, Tensor):
                check_recordable(value)
        except RecordError as error:
            raise BuilderError(f"{name} of {_name_class(model)}: {error}") from None


def check_unique_name(registered: RegisteredMetric, others: Iterable[RegisteredMetric], owner: str) -> None:
    """Raise `BuilderError` if one of *others*, the metrics of *owner*, has the same name and thus log."""
    if registered.name in [other.name for other in others]:
        raise BuilderError(f"two metrics of {owner} have the name {registered.name!r}: remove one of them")


def check_optimizer(
    options: LearnerOptions, optimizer: torch.optim.Optimizer, model: torch.nn.Module, ranks: int
) -> None:
    """Raise `BuilderError` if *optimizer* does not fit the model, the number of ranks, or a portable run."""
    conflict = describe_portable_optimizer_conflict(type(optimizer).__name__)
    if options.compute.portable and conflict:
        raise BuilderError(conflict)
    of_model = {id(parameter) for parameter in model.parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in of_model for parameter in parameters)
    if foreign:
        raise BuilderError(
            f"{foreign} of the {len(parameters)} parameters of the {type(optimizer).__name__} are not the "
            "model's: create it with model.parameters() of the model that is trained"
        )
    if not isinstance(optimizer, torch.optim.LBFGS):
        return
    conflict = describe_lbfgs_conflict(options.accumulation.batches, ranks)
    if conflict:
        raise BuilderError(conflict)
    if updates_itself(model):
        raise BuilderError(
            f"{type(model).__name__} updates itself in its method optimize, which L-BFGS cannot evaluate: "
            "use another optimizer, or remove the method"
        )


def updates_itself(model: Any) -> bool:
    """Return whether *model* has a method ``optimize``, which updates it in place of the loop."""
    return hasattr(model, "optimize")


def has_gradients(step: TrainOutput[Any]) -> bool:
    """Return whether *step* has a gradient; a step without samples or targets counts as having one."""
    item = step.item
    if item is None or item.size == 0 or any(gradient is not None for gradient in step.gradients):
        return True
    return not weight_of(item)


def missing_gradients(model: Any, gradients: Gradients, *, location: str) -> BuilderError:
    """Return the error for a first update, at *location*, in which no parameter has a gradient."""
    return BuilderError(
        f"{location}: no parameter of {type(model).__name__} would be trained, because all {len(gradients)} "
        "gradients are None. The loss must depend on the model's own parameters: compute it without "
        "detach(), torch.no_grad() or a copy of the model, and return backward(self, loss) from train_step"
    )


@dataclass(frozen=True)
class RuleOptions(OptionalAttributes):
    """The optional attributes of a rule that stops or retains, or of a schedule, with their defaults."""

    rules: Sequence[Any] = ()
    """The parts of a composed rule."""
    needs: Collection[tuple[Split, str]] = ()
    """The metrics that it reads, by split."""
    direction: Direction | None = None
    """The direction in which it takes their values to improve."""
    monitored: tuple[Split, str] | None = None
    """The metric of a schedule."""
    scheduler: Any = None
    """The object of torch that a schedule adapts."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The arguments with which that object was created."""
    drives_groups: bool = False
    """True if a schedule sets the rates of the optimizer's groups itself."""
    set_length: Callable[[RunLength], None] | None = None
    burn_state: Callable[[], Any] = lambda: None
    """Return the state of a schedule as Burn records it."""


def check_monitored_metrics(rule: Any, metrics: Mapping[Split, Iterable[RegisteredMetric]]) -> None:
    """Check that the metrics that *rule* reads are registered as numbers and are not telemetry.

    Each part of a composed rule is checked. Raises `BuilderError`, also for a schedule that treats the worst
    values of its metric as the best. Logs a warning for any other rule that does.
    """
    options = RuleOptions.of(rule)
    for part in options.rules:
        check_monitored_metrics(part, metrics)
    if options.rules:
        return
    directions = {
        (split, registered.name): registered.options.better
        for split, metrics_of_split in metrics.items()
        for registered in metrics_of_split
        if registered.numeric and not registered.telemetry
    }
    name = _name_of(rule, options)
    for split, metric in sorted(options.needs):
        if (split, metric) not in directions:
            names = ", ".join(f"{split} {metric}" for split, metric in sorted(directions)) or "none"
            raise BuilderError(
                f"{name} uses the {split} {metric!r}, which is not registered as a number; registered: "
                f"{names}. Register it (metric_{split}_numeric, or fit.metrics in params.yaml), or set the "
                "rule to another metric (fit.keep and fit.early_stopping in params.yaml)"
            )
        _check_direction(options, name, f"{split} {metric!r}", directions[split, metric])


def find_valid_metrics(rule: Any) -> list[str]:
    """Return the metrics of the valid split that *rule* reads: early stopping, retention or a schedule."""
    return [metric for split, metric in RuleOptions.of(rule).needs if split is Split.VALID]


def check_rules_without_validation(*rules: Any) -> None:
    """Raise `BuilderError` if one of *rules* reads a metric of the valid split, which the run does not have.

    The part of the default retention that keeps the best epoch is accepted, and keeps none.
    """
    for rule in rules:
        options = RuleOptions.of(rule)
        check_rules_without_validation(*options.rules)
        monitored = find_valid_metrics(rule)
        if monitored and not options.rules and rule != KeepBest():
            raise BuilderError(
                f"{_name_of(rule, options)} uses the valid {monitored[0]!r}, but the "
                "run has no validation. Pass a valid loader (load_data.valid_fraction above 0), or use a "
                "metric of the train split (fit.early_stopping and fit.keep.best in params.yaml)"
            )


def _name_of(rule: Any, options: RuleOptions) -> str:
    return type(rule if options.scheduler is None else options.scheduler).__name__


def _check_direction(options: RuleOptions, name: str, metric: str, better: Direction | None) -> None:
    """Raise `BuilderError` for a schedule with the wrong direction; log a warning for any other rule."""
    if None in (better, options.direction) or better == options.direction:
        return
    message = (
        f"{name} treats the {options.direction} value as the best, but the best {metric} is the {better}: "
    )
    if options.monitored:
        mode = "min" if better is Direction.LOWEST else "max"
        raise BuilderError(f"{message}create it with mode={mode!r}, or monitor another metric")
    log.warning("%sset its direction to %s", message, better)


def check_metric_inputs(model: Any, metrics: Mapping[Split, Iterable[RegisteredMetric]]) -> None:
    """Raise `BuilderError` if a metric cannot measure the output that a step of *model* is annotated with.

    *model* may be the class of a model. Steps without annotations are not checked.
    """
    for split, step in ((Split.TRAIN, "train_step"), (Split.VALID, "valid_step")):
        returned = _item_type(getattr(model, step, None))
        for metric in metrics[split]:
            measures = metric.options.measures
            if returned is not None and not issubclass(returned, measures):
                owner = (model if isinstance(model, type) else type(model)).__name__
                raise BuilderError(
                    f"metric {metric.name!r} measures {metric.measures}, but {owner}.{step} returns "
                    f"{returned.__name__}: register another metric"
                )


def _item_type(step: Any) -> type | None:
    """Return the item type of a step's annotation: ``-> Item``, or ``-> TrainOutput[Item]``."""
    try:
        returned = get_type_hints(step).get("return")
    except Exception:  # noqa: BLE001  a user's annotation may have an unknown name
        return None
    arguments = get_args(returned)
    item = arguments[0] if arguments else returned
    is_known = isinstance(item, type) and item not in (Any, object, TrainOutput)
    return item if is_known else None


class StepChecks:
    """Checks of the steps of *model*, whose gradients update it through *optimizer*.

    Each method raises `BuilderError`, which names the step with its file and line.
    """

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._model = model
        self._optimizer = None if updates_itself(model) else optimizer
        self._parameters = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
        self._has_checked_gradients = False

    def check_train_step(self, step: Any) -> int:
        """Return the number of samples of *step* if it is valid.

        The number of gradients is checked each time, their shapes once.
        """
        try:
            gradients, item = step.gradients, step.item
        except AttributeError:
            raise self._error("train_step", f"returned {_describe(step)}: {RETURN}") from None
        if not isinstance(gradients, SEQUENCES):
            raise self._error(
                "train_step",
                f"returned {_describe(gradients)} as gradients; it must be a list: use backward(self, loss)",
            )
        if len(gradients) != len(self._parameters):
            raise self._error(
                "train_step",
                f"returned {len(gradients)} gradients for {len(self._parameters)} parameters: return one for "
                "each of self.parameters(), in that order, None for a frozen one, as backward(self, loss) "
                "does",
            )
        loss = getattr(item, "loss", None)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            self._check_loss(item, loss)
        size = self._check_size("train_step", item)
        if not self._has_checked_gradients:
            self._check_gradients(gradients)
            self._has_checked_gradients = True
        return size

    def check_valid_step(self, item: Any) -> Any:
        """Return *item* if it is valid as the output of a validation step."""
        self._check_size("valid_step", item)
        return item

    def _check_loss(self, item: Any, loss: Any) -> None:
        if loss is None:
            raise self._error("train_step", f"returned {_describe(item)} without a loss as item: {ITEM}")
        if not isinstance(loss, Tensor):
            raise self._error("train_step", f"returned {_describe(loss)} as loss, which must be a tensor")
        raise self._error(
            "train_step", f"returned a loss of shape {tuple(loss.shape)}: reduce it, for example loss.mean()"
        )

    def _check_size(self, step: str, item: Any) -> int:
        try:
            size: int = item.size
        except Exception as error:
            if not hasattr(type(item), "size"):
                raise self._error(step, f"returned {_describe(item)} without a size: {ITEM}") from None
            match item:
                case object(targets=object(ndim=0)):
                    raise self._error(
                        step, f"received one sample, not a batch: pass a loader, such as {LOADER}"
                    ) from None
            raise self._error(
                step, f"returned {_describe(item)}, whose size cannot be read: {error}. {ITEM}"
            ) from error
        if type(size) is int and size >= 0:
            return size
        if isinstance(item, Tensor | dict):
            problem = f": {ITEM}"
        elif callable(size):
            problem = ", whose size is a method: make it a @property"
        elif isinstance(size, bool) or not _is_count(size):
            problem = f", whose size is {size!r}: return the number of samples"
        else:
            return operator.index(size)
        raise self._error(step, f"returned {_describe(item)}{problem}")

    def _check_gradients(self, gradients: Any) -> None:
        for (name, parameter), gradient in zip(self._parameters.items(), gradients, strict=True):
            if gradient is None:
                continue
            if not isinstance(gradient, Tensor):
                raise self._error("train_step", f"returned {_describe(gradient)} as gradient of {name}")
            if gradient.shape != parameter.shape:
                raise self._error(
                    "train_step",
                    f"returned a gradient of shape {tuple(gradient.shape)} for {name}, which has shape "
                    f"{tuple(parameter.shape)}: return the gradients in the order of self.parameters()",
                )
            if gradient.layout == torch.strided and isinstance(self._optimizer, torch.optim.SparseAdam):
                raise BuilderError(
                    f"the gradient of {name} is dense, which SparseAdam does not support. Use another "
                    "optimizer, or create every layer with sparse=True"
                )
            if gradient.layout != torch.strided and not takes_sparse(self._optimizer):
                raise BuilderError(
                    f"the gradient of {name} is sparse, which {type(self._optimizer).__name__} with its "
                    f"options does not support. {SPARSE}"
                )

    def _error(self, step: str, problem: str) -> BuilderError:
        return BuilderError(f"{step_name(self._model, step)} {problem}")


def step_name(model: Any, step: str) -> str:
    """Return ``Class.step (file, line N)``; the line is that of the class if the step is a mixin's."""
    place = place_of(getattr(model, step)) or place_of(type(model))
    return f"{type(model).__name__}.{step}{place}"


def _name_class(model: Any) -> str:
    """Return ``Class (file, line N)``, for which Python parses the file."""
    return f"{type(model).__name__}{place_of(type(model))}"


def takes_sparse(optimizer: torch.optim.Optimizer | None) -> bool:
    """Return whether *optimizer* supports sparse gradients and a checkpoint can hold its state.

    An optimizer from outside torch is assumed to.
    """
    if isinstance(optimizer, torch.optim.SGD):
        return not any(g["fused"] or g["momentum"] or g["weight_decay"] for g in optimizer.param_groups)
    if isinstance(optimizer, torch.optim.Adagrad):
        return not any(g["fused"] or g["weight_decay"] for g in optimizer.param_groups)
    if optimizer is None or isinstance(optimizer, torch.optim.SparseAdam | torch.optim.LBFGS):
        return True
    return not type(optimizer).__module__.startswith(("torch.optim", "stages."))


def _is_count(size: Any) -> bool:
    try:
        return operator.index(size) >= 0
    except (TypeError, ValueError):
        return False


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[:1] in "AEIOUaeiou" else "a"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, dict):
        return f"{article} {name} with the keys {', '.join(map(repr, list(value)[:8])) or '(none)'}"
    return f"{article} {name}"


def overfit(model: Any, optimizer: torch.optim.Optimizer, batch: Any, *, steps: int) -> list[float]:
    """Return the loss of each of *steps* steps on one *batch*, which falls if *model* can learn.

    It is for a quick test of a model before a long training.
    """
    losses = []
    for _ in range(steps):
        step = model.train_step(batch)
        for parameter, gradient in zip(model.parameters(), step.gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        losses.append(step.item.loss.item())
    return losses
