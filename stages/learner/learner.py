"""The learner that a builder returns."""

import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Self

import torch
from torch import nn

from stages.contracts.errors import BuilderError
from stages.contracts.history import History
from stages.contracts.printing import print_text
from stages.contracts.step_log import keep_step_log
from stages.devices.compute_settings import apply_compute_settings
from stages.devices.memory import report_device_errors
from stages.learner.assembly import AnyOptimizer, Components, LearningRate, assemble
from stages.learner.batches import Loader
from stages.learner.loop import Loop
from stages.learner.options import LearnerOptions
from stages.learner.resume.burn_checkpoints import protect_files
from stages.learner.run_state import RunState, write_machine
from stages.learner.step_errors import explain_step_errors
from stages.learner.summary import summary_text, training_lines

_training_threads: list[int] = []
"""The thread of each training in progress in this process."""

log = logging.getLogger(__name__)


class Learner:
    """A model, an optimizer and a schedule, with everything that trains them. Burn's `Learner`.

    `LearnerBuilder.build` and `SupervisedTraining.launch` set the options of the run, which `fit` needs; see
    `LearnerBuilder.build` for the types of the arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: AnyOptimizer,
        lr: LearningRate = None,
    ) -> None:
        self._parts = (model, optimizer, lr)
        self._assembled: Components | None = None

    def assemble(self, options: LearnerOptions) -> Self:
        """Set the *options* of the run, with the model on the device and restored from a checkpoint, if any.

        Raises the errors of `LearnerBuilder.build`.
        """
        self._assembled = assemble(options, *self._parts)
        return self

    @property
    def components(self) -> Components:
        """The parts of the run, for tools that measure it."""
        if self._assembled is None:
            raise BuilderError(
                "this learner has no options: pass it to SupervisedTraining.launch, or build one with "
                "LearnerBuilder"
            )
        return self._assembled

    @property
    def _options(self) -> LearnerOptions:
        return self.components.options

    @property
    def _state(self) -> RunState:
        return self.components.state

    @property
    def model(self) -> nn.Module:
        """The model in its current state."""
        model: nn.Module = self._state.model.model
        return model

    @property
    def history(self) -> History:
        """The value of every metric in every finished epoch."""
        return self._state.history

    @property
    def epoch(self) -> int:
        """The last finished epoch; 0 before the first."""
        return self._state.epoch

    @property
    def interrupted(self) -> bool:
        """True if the run was asked to stop; it may then lack epochs."""
        return self.components.interrupter.should_stop()

    @property
    def resumed(self) -> str | None:
        """The position that the run resumed at, such as "after epoch 3"; None for a new run."""
        return self._state.resumed

    @property
    def checkpoint_bytes(self) -> int:
        """The maximum size of one checkpoint: the model, its average, and two numbers for each parameter."""
        state = self.model.state_dict().values()
        weights = sum(value.nbytes for value in state if isinstance(value, torch.Tensor))
        weights += self._state.model.average.nbytes if self._state.model.average else 0
        return weights + 2 * sum(parameter.nbytes for parameter in self.model.parameters())

    def fit(self, train: Loader, valid: Loader | None = None) -> nn.Module:
        """Train for the remaining epochs, with a validation after each, and return the trained model.

        Without *valid* there is no validation: the last epoch is the best, and no rule may read a metric of
        the valid split. The default retention then keeps the last two checkpoints.
        If the weights are averaged, the model has those of the training; see `apply_average`.

        Raises `BuilderError` if a loader has no batches, if a metric cannot measure the output of a step, or
        if a step raises an exception in code of a library; `NonFiniteError` before a NaN or infinity reaches
        the weights, `StageError` if an accelerator fails or its memory is exhausted, and `CheckpointError` if
        a checkpoint that belongs to the result could not be written, or if it would replace one of Burn.
        """
        self._check_between_epochs()
        checkpoints = self.components.checkpoints
        saves = checkpoints.complete_saves() if checkpoints is not None else nullcontext()
        is_main = self.components.group.is_main
        if is_main:
            protect_files(self._options, self.epoch)
        application_log = self._options.open_application_log() if is_main else nullcontext()
        with application_log:
            label = f" of {self._options.label}" if self._options.label else ""
            log.info("%s", f"Resuming {self.resumed}{label}" if self.resumed else f"Starting training{label}")
            if is_main:
                self._note_machine()
            loop = Loop(self.components)
            with (
                _report_other_threads(),
                keep_step_log(),
                explain_step_errors(self.model),
                report_device_errors(self.components.device, loop.describe_position),
                self.compute_settings(),
                saves,
            ):
                model = loop.run(train, valid)
            if checkpoints is not None and not self.interrupted:
                checkpoints.finish()
        if self._options.summary and is_main and not self.interrupted:
            state = self._state.model
            training = training_lines(model, state.optimizer, state.scheduler, self._options.averaging)
            print_text(summary_text(self.history, model, training=training))
        return model

    def compute_settings(self) -> AbstractContextManager[None]:
        """Return the context with the threads, the precision and the device of `fit`."""
        return apply_compute_settings(self._options.compute, self.components.device)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of one forward pass in the precision of the run."""
        return self._state.precision.autocast()

    def apply_average(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the average of its weights, if there is one."""
        return self._state.model.apply_average()

    def save(self) -> None:
        """Write a checkpoint of the last finished epoch; 0 before the first.

        Raises `BuilderError` without a checkpointer, and `CheckpointError` if it cannot be written.
        """
        checkpoints, state = self.components.checkpoints, self._state
        if self._options.recorder is None:
            raise BuilderError("save() needs a checkpointer: call with_file_checkpointer first")
        self._check_between_epochs()
        if checkpoints is None:
            return  # another rank writes
        with checkpoints.complete_saves():
            checkpoints.save_epoch(state.epoch, state.checkpoint(), state.history)
        checkpoints.finish()

    def _note_machine(self) -> None:
        """Log the machine, and write it beside the checkpoints for the next resume."""
        machine = self._state.machine
        log.info("Training with %s", ", ".join(f"{key} {value}" for key, value in machine.items()))
        if self.components.checkpoints is not None:
            write_machine(self._options.directory, machine)

    def _check_between_epochs(self) -> None:
        if self._state.open_epoch is not None:
            after = f", or with checkpoint({self.epoch})" if self.epoch else ""
            advice = "a new model" if self._options.recorder is None else f'checkpoint("auto"){after}'
            raise BuilderError(
                f"this learner was stopped in the middle of epoch {self._state.open_epoch}, so its weights "
                f"belong to no epoch. Build it again with {advice}"
            )


@contextmanager
def _report_other_threads() -> Iterator[None]:
    """Log a warning if another thread of this process trains too."""
    thread = threading.get_ident()
    if any(other != thread for other in _training_threads):
        log.warning(
            "another thread of this process trains too, and both draw from the same random generators: "
            "neither run can be repeated. Train in a process for each"
        )
    _training_threads.append(thread)
    try:
        yield
    finally:
        _training_threads.remove(thread)
