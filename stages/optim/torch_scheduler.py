"""torch's learning rate schedulers, as the loop asks them; and any learning rate as a scheduler."""

import copy
from numbers import Real
from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.history import Direction, Split
from stages.optim.scheduler import LrScheduler, Scheduler, check_rate


class TorchScheduler:
    """A scheduler of torch, which sets the rates of its optimizer's groups.

    It steps after each batch or each epoch. ``ReduceLROnPlateau`` steps after each epoch only, with the
    epoch's value of the metric *monitor*: ``"Accuracy"`` or ``"valid Accuracy"`` of the valid split,
    ``"train Loss"`` of the train split. The default is the validation loss. Raises `BuilderError` for a
    plateau of ``mode="max"`` without a *monitor*, and for a *monitor* of any other scheduler.
    """

    drives_groups = True
    """It sets the rates of the groups, and nothing else does."""

    def __init__(
        self,
        scheduler: LRScheduler,
        per: Literal["batch", "epoch"] = "batch",
        *,
        monitor: str | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.is_plateau = isinstance(scheduler, ReduceLROnPlateau)
        self.per = "epoch" if self.is_plateau else per
        self.monitored = _monitored(scheduler, monitor)
        """The split and the metric whose epoch value `end_epoch` takes."""
        self._started = False
        # torch would warn of a batch whose gradients only go into an accumulation window
        scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001

    @property
    def needs(self) -> set[tuple[Split, str]]:
        """The epoch values that it decides by, as split and metric; only ``ReduceLROnPlateau`` has one."""
        return {self.monitored} if self.is_plateau else set()

    @property
    def direction(self) -> Direction:
        """The better direction of what it monitors."""
        return Direction.HIGHEST if getattr(self.scheduler, "mode", "min") == "max" else Direction.LOWEST

    def step(self) -> float:
        """The rate of the first group for the next batch; the others' stand in the optimizer."""
        if self.per == "batch" and self._started:
            self.scheduler.step()
        self._started = True
        return float(self.scheduler.optimizer.param_groups[0]["lr"])

    def end_epoch(self, metric: float | None = None) -> None:
        """Step if an iteration is an epoch; *metric* is the epoch's value of what is monitored."""
        if self.per == "batch":
            return
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        elif metric is not None:
            self.scheduler.step(metric)
        else:
            split, name = self.monitored
            raise BuilderError(
                f"ReduceLROnPlateau monitors the {split} {name!r}, which this epoch lacks: register a {name} "
                f"metric for the {split} split"
            )

    def state_dict(self) -> dict[str, Any]:
        """What of the scheduler is plain data; the functions and options it was made with are its maker's."""
        return {"started": self._started, "scheduler": _plain(self.scheduler.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from *state*, made as the first was; the rates are in the optimizer's own state."""
        if not isinstance(state.get("scheduler"), dict):
            raise CheckpointError(
                f"a scheduler of torch has a 'scheduler' in its state, this one has {sorted(state)}: it was "
                "saved by another kind of scheduler"
            )
        self._started = bool(state["started"])
        self.scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))


class OptimizerRate:
    """The rates that the groups of an optimizer have, and that anything else may change.

    Raises `ParamsError` if that of the first group is not above 0 when it is made.
    """

    drives_groups = True
    """The groups keep their rates."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        check_rate(self._rate)

    def step(self) -> float:
        """Return the rate of the first group."""
        return self._rate

    def end_epoch(self, metric: float | None = None) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing, as the rates are in the optimizer's own state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing; the state of a constant schedule fits too."""

    @property
    def _rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def as_scheduler(optimizer: Optimizer, lr: float | LrScheduler | LRScheduler | None) -> LrScheduler:
    """Return *lr* as the loop calls it: a number is constant, None is the optimizer's own rate.

    A scheduler of torch steps after each batch, as Burn's do; for each epoch, pass
    ``TorchScheduler(scheduler, per="epoch")``. A ``ReduceLROnPlateau`` follows the validation loss; for
    another metric, pass ``TorchScheduler(scheduler, monitor="Accuracy")``. Raises `BuilderError` for a
    scheduler of another optimizer, and for a type that gives no rate.
    """
    if isinstance(lr, LRScheduler):
        lr = TorchScheduler(lr)
    if isinstance(lr, TorchScheduler) and lr.scheduler.optimizer is not optimizer:
        raise BuilderError(
            f"the {type(lr.scheduler).__name__} belongs to another optimizer than the one given: make "
            "it with that one"
        )
    if lr is None:
        return OptimizerRate(optimizer)
    if isinstance(lr, float | Real):
        return Scheduler(float(lr))
    if not callable(getattr(lr, "step", None)):
        raise BuilderError(
            f"{lr!r} is a {type(lr).__name__}, which says no learning rate: give a number, a scheduler of "
            "stages.optim or of torch, an object with its methods (step, end_epoch …), or None for the "
            "optimizer's own rate"
        )
    return lr


def _monitored(scheduler: LRScheduler, monitor: str | None) -> tuple[Split, str]:
    """Return the split and the metric that *monitor* names; raise `BuilderError` if it cannot work."""
    is_plateau = isinstance(scheduler, ReduceLROnPlateau)
    if monitor is not None and not is_plateau:
        raise BuilderError(
            f"a {type(scheduler).__name__} monitors no metric, but monitor is {monitor!r}: leave it out"
        )
    if monitor is None and is_plateau and getattr(scheduler, "mode", "min") == "max":
        raise BuilderError(
            "a ReduceLROnPlateau of mode='max' cannot follow the validation loss, which is to fall: name its "
            "metric, as in TorchScheduler(scheduler, monitor='Accuracy'), or make it with mode='min'"
        )
    first, _, rest = (monitor or "Loss").partition(" ")
    return (Split(first), rest) if first in list(Split) and rest else (Split.VALID, monitor or "Loss")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value)
    return value is None or isinstance(value, bool | int | float | str | Tensor)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """The entries of *state* that a record can hold, also of the states inside."""
    return {key: _pruned(value) for key, value in state.items() if _is_plain(value)}


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(value)
    return [_pruned(each) for each in value] if isinstance(value, list | tuple) else value
