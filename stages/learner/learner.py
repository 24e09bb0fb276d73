"""The learner that a builder made."""

import sys

from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.history import History
from stages.learner.loop import Loader, Loop, Parts
from stages.learner.summary import summary_text


class Learner:
    """A model, an optimizer and a schedule, and everything they are trained with. Burn's `Learner`."""

    def __init__(self, parts: Parts, *, summary: bool) -> None:
        self._parts = parts
        self._summary = summary

    @property
    def model(self) -> nn.Module:
        """The model, as far as it is trained."""
        model: nn.Module = self._parts.state.model
        return model

    @property
    def history(self) -> History:
        """Every epoch value so far."""
        return self._parts.history

    def fit(self, train: Loader, valid: Loader) -> nn.Module:
        """Train through the epochs that are left, validating after each; the trained model.

        Raises `BuilderError` where a loader has no batches.
        """
        model = Loop(self._parts).run(train, valid)
        if self._summary:
            sys.stdout.write(summary_text(self.history, model) + "\n")
        return model

    def save(self) -> None:
        """Write a checkpoint of the epoch that was finished last; 0 before the first."""
        if self._parts.checkpointer is None:
            raise BuilderError("save() needs a checkpointer: call with_file_checkpointer first")
        state = self._parts.state
        self._parts.checkpointer.save(state.epoch, state.checkpoint(self.history))
