"""What the builder puts together and the loop drives."""

import logging
import platform
from dataclasses import dataclass, field
from typing import Any

import torch

from stages.checkpoints import Checkpoint
from stages.contracts.history import History
from stages.contracts.interrupter import Interrupter
from stages.contracts.seeds import derived_seed
from stages.learner.candidates import newest
from stages.learner.history_record import history_of, history_tree
from stages.learner.place import Place
from stages.learner.replicas import Replicas
from stages.learner.saver import Saver
from stages.learner.state import State
from stages.learner.stopping import EarlyStopping
from stages.learner.watchers import Watchers
from stages.optim import Guard, Window

log = logging.getLogger(__name__)


@dataclass
class Parts:
    """Everything a run is made of."""

    state: State
    num_epochs: int
    seed: int | None
    """None until it is asked for, where nobody named one."""
    replicas: Replicas
    window: Window
    guard: Guard
    watchers: Watchers
    interrupter: Interrupter
    saver: Saver | None
    stopping: EarlyStopping | None
    identity: str | None = None
    """Of the run; its checkpoints carry it."""
    history: History = field(default_factory=History)
    open_epoch: int | None = None
    """The epoch that has begun and is not done; then the weights are those of no epoch's checkpoint."""
    place: Place | None = None
    """Where in the open epoch to go on; None at the start of one."""
    resumed: str | None = None
    """Where the run was taken up, in words; None where it was not."""

    is_newest: bool = False
    """Whether it was taken up from the newest checkpoint, so that no later one is of another run."""

    def restore(self, epoch: int) -> None:
        """Go on from the checkpoint of *epoch*. Raises `CheckpointError` if it is not there or not whole."""
        if self.saver is not None:
            log.info("Restoring checkpoint %d from %s", epoch, self.saver.epochs.directory)
            self._take(self.saver.epochs.restore(epoch))

    def restore_newest(self) -> None:
        """Go on from the newest checkpoint that is whole, if there has ever been one.

        Raises `CheckpointError` where there are some and none is whole.
        """
        if self.saver is None:
            return
        found = newest(
            self.saver.epochs,
            self.saver.steps,
            last_epoch=self.num_epochs,
            identity=self.identity,
            verify_logs=self.watchers.verify,
        )
        if found is not None:
            self.is_newest = True
            self._take(found)

    def derived_seed(self, *path: int | str) -> int:
        """A seed for what *path* names; of a run without a seed, from torch's own."""
        if self.seed is None:
            self.seed = torch.initial_seed()
        return derived_seed(self.seed, *path)

    def save(self) -> None:
        """Write a checkpoint of the epoch that is done."""
        if self.saver is not None:
            self.saver.save_epoch(self.state.epoch, self.state.checkpoint(self._trainer()), self.history)

    def save_step(self, place: Place) -> bool:
        """Write a checkpoint of *place*; whether that could be done."""
        trainer = {**self._trainer(), "place": place.to_tree()}
        return self.saver is not None and self.saver.save_step(self.state.checkpoint(trainer))

    def _trainer(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "history": history_tree(self.history),
            "window": self.window.state_dict(),
            "guard": self.guard.state_dict(),
            "seed": torch.initial_seed() if self.seed is None else self.seed,
            "environment": self._environment(),
        }

    def _take(self, checkpoint: Checkpoint) -> None:
        trainer = checkpoint.trainer
        self.state.restore(checkpoint)
        self.history = history_of(checkpoint)
        self.window.load_state_dict(trainer["window"])
        self.guard.load_state_dict(trainer["guard"])
        self._take_seed(trainer["seed"])
        self.replicas.synchronize()
        if trainer.get("place") is not None:
            self.place = Place.from_tree(trainer["place"])
        if self.place or self.state.epoch:
            self._take_note(trainer.get("environment"))

    def _take_note(self, environment: Any) -> None:
        self.resumed = str(self.place) if self.place else f"after epoch {self.state.epoch}"
        log.info("Going on %s", self.resumed)
        if environment not in (None, self._environment()):
            log.warning(
                "the checkpoint was made with %s and this is %s: the numbers may differ in their last digits",
                environment,
                self._environment(),
            )

    def _take_seed(self, seed: int) -> None:
        """Go on with the checkpoint's *seed*, unless the builder was given one."""
        if self.seed is None:
            self.seed = seed
        elif seed != self.seed and self.state.epoch:
            log.warning("the seed is %d and was %d: the run will not equal an unbroken one", self.seed, seed)

    def _environment(self) -> dict[str, str]:
        """What may round otherwise elsewhere."""
        kinds = sorted({device.type for device in self.replicas.devices})
        return {"torch": torch.__version__, "machine": platform.machine(), "device": ", ".join(kinds)}
