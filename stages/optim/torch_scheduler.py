"""torch's learning rate schedulers, as the loop asks them; and any learning rate as a scheduler."""

import copy
from numbers import Real
from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from stages.contracts.errors import BuilderError, CheckpointError
from stages.contracts.history import Split
from stages.optim.scheduler import LrScheduler, Scheduler, check_rate


class TorchScheduler:
    """A scheduler of torch, which sets the rates of its optimizer's groups.

    It moves on after each batch or each epoch. ``ReduceLROnPlateau`` moves on after each epoch only, by its
    validation loss.
    """

    drives_groups = True
    """The rates of the groups are its work, and nobody else's."""

    def __init__(self, scheduler: LRScheduler, per: Literal["batch", "epoch"] = "batch") -> None:
        self.scheduler = scheduler
        self.per = "epoch" if isinstance(scheduler, ReduceLROnPlateau) else per
        self._started = False
        # torch would warn of a batch whose gradients only go into an accumulation window
        scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001

    @property
    def needs(self) -> set[tuple[Split, str]]:
        """The epoch values that it moves by, as split and metric; empty for all but ``ReduceLROnPlateau``."""
        return {(Split.VALID, "Loss")} if isinstance(self.scheduler, ReduceLROnPlateau) else set()

    def step(self) -> float:
        """The rate of the first group for the next batch; the others' stand in the optimizer."""
        if self.per == "batch" and self._started:
            self.scheduler.step()
        self._started = True
        return float(self.scheduler.optimizer.param_groups[0]["lr"])

    def end_epoch(self, metric: float | None = None) -> None:
        """Move on, where it goes by epochs; *metric* is the validation loss."""
        if self.per == "batch":
            return
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        elif metric is not None:
            self.scheduler.step(metric)
        else:
            raise BuilderError(
                "ReduceLROnPlateau waits for the validation loss, and this epoch has none: register a Loss "
                "metric for the valid split"
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
    """Whatever says the learning rate, as the loop asks it: a number is constant, None the optimizer's own.

    A scheduler of torch moves on after each batch, as Burn's do; for each epoch, hand over
    ``TorchScheduler(scheduler, per="epoch")``. Raises `BuilderError` for one of another optimizer, and for
    what says no rate.
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
