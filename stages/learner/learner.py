"""The learner that a builder made."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.history import History
from stages.learner.batches import Loader
from stages.learner.loop import Loop
from stages.learner.parts import Parts
from stages.learner.summary import summary_text


class Learner:
    """A model, an optimizer and a schedule, and everything they are trained with. Burn's `Learner`."""

    def __init__(
        self, parts: Parts, application_log: Callable[[], AbstractContextManager[object]], *, summary: bool
    ) -> None:
        self._parts = parts
        self._application_log = application_log
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

    @property
    def epoch(self) -> int:
        """The last epoch that is done; 0 before the first."""
        return self._parts.state.epoch

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop, so that it may lack epochs."""
        return self._parts.interrupter.should_stop()

    @property
    def resumed(self) -> str | None:
        """Where it was taken up, as in "after epoch 3"; None where it starts."""
        return self._parts.resumed

    @property
    def checkpoint_bytes(self) -> int:
        """What one checkpoint takes at most: the model, and two numbers for each of its parameters."""
        state = self.model.state_dict().values()
        weights = sum(each.nbytes for each in state if isinstance(each, torch.Tensor))
        return weights + 2 * sum(each.nbytes for each in self.model.parameters())

    def fit(self, train: Loader, valid: Loader) -> nn.Module:
        """Train through the epochs that are left, validating after each; the trained model.

        Raises `BuilderError` where a loader has no batches or a metric cannot measure what a step gives,
        `NonFiniteError` before a NaN or infinity reaches the weights, and `CheckpointError` where checkpoints
        that belong to the result could not be written.
        """
        self._check_whole()
        with self._application_log():
            model = Loop(self._parts).run(train, valid)
            if self._parts.saver is not None and not self.interrupted:
                self._parts.saver.finish()
        if self._summary:
            sys.stdout.write(summary_text(self.history, model) + "\n")
        return model

    def save(self) -> None:
        """Write a checkpoint of the epoch that was finished last; 0 before the first."""
        if self._parts.saver is None:
            raise BuilderError("save() needs a checkpointer: call with_file_checkpointer first")
        self._check_whole()
        self._parts.save()

    def _check_whole(self) -> None:
        if self._parts.open_epoch is not None:
            raise BuilderError(
                f"this learner was stopped in the middle of epoch {self._parts.open_epoch}, and its weights "
                'are those of no epoch: build it again with checkpoint("auto"), or with '
                f"checkpoint({self._parts.state.epoch})"
            )
