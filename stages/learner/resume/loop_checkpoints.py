"""Checkpoints of a training loop that does not use the Learner."""

import sys
from pathlib import Path

from torch import nn

from stages.contracts.errors import CheckpointError, RecordError
from stages.contracts.history import History
from stages.learner.model_state import load_weights
from stages.learner.resume.checkpointing import find_newest_checkpoint
from stages.learner.resume.training_state import Stateful
from stages.learner.run_state import history_of, history_tree
from stages.records import (
    NamedMpkGzFileRecorder,
    OriginalPrecision,
    Tree,
    decode_state,
    encode_state,
    module_supplement,
    record_of,
)
from stages.runs import Checkpoint, FileCheckpointer, Retention, default_retention
from stages.runs.file_names import STEP_FOLDER
from stages.runs.retention import keep_epochs


class LoopCheckpoints:
    """The checkpoints of a training loop of your own, which it writes after each epoch and resumes from.

    >>> import tempfile, torch
    >>> from stages.contracts.history import Split, Value
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     optimizer = torch.optim.Adam(model.parameters())
    ...     checkpoints = LoopCheckpoints(folder, model, optimizer=optimizer)
    ...     for epoch in range(checkpoints.restore() + 1, 3):
    ...         optimizer.zero_grad()
    ...         loss = model(torch.ones(4, 2)).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         checkpoints.history.add(Value(epoch, Split.TRAIN, "Loss", loss.item()))
    ...         checkpoints.save(epoch)
    ...     checkpoints.restore()
    2

    The loop resumes exactly if each epoch sets the state of the random generators from a seed and its number.
    """

    def __init__(
        self,
        directory: Path | str,
        model: nn.Module,
        *,
        retention: Retention | None = None,
        **parts: Stateful,
    ) -> None:
        """Create the checkpoints in *directory*.

        Args:
            directory: The folder of the files ``model-N``, ``optim-N`` and so on, created if missing.
            model: The model; one with several networks has them as submodules.
            retention: The rule for the checkpoints to keep. Default: the last two, and the one with the
                lowest valid loss.
            parts: Everything else that the loop changes, by name: optimizers, schedulers. The names are part
                of the checkpoints.

        Raises:
            RecordError: If a part has a value that no checkpoint can hold.
            CheckpointError: If *directory* has checkpoints of Burn, which the loop would replace.
        """
        self._files = FileCheckpointer(Path(directory).absolute(), NamedMpkGzFileRecorder(OriginalPrecision))
        if self._files.list_burn_epochs():
            raise CheckpointError(f"{directory} has checkpoints that Burn wrote. Use another directory")
        self._model = model
        self._retention = retention or default_retention()
        self._parts = parts
        self._encode_parts()  # so that what no checkpoint can hold is refused before the loop
        self.history = History()
        """The values of the metrics; `restore` adds those of the checkpoint."""

    def save(self, epoch: int) -> None:
        """Write the checkpoint of *epoch*, and remove those that the rule drops.

        If the process is killed before this returns, the loop resumes after the epoch before. Raises
        `RecordError` if a part has a value that no checkpoint can hold.
        """
        trainer = {
            "epoch": epoch,
            "model": encode_state(module_supplement(self._model), "the model's state_dict()"),
            "history": history_tree(self.history),
        }
        self._files.save(epoch, Checkpoint(record_of(self._model), self._encode_parts(), None, trainer))
        self._apply_retention(epoch)

    def _encode_parts(self) -> dict[str, Tree]:
        return {
            name: encode_state(part.state_dict(), f"{name}.state_dict()")
            for name, part in self._parts.items()
        }

    def restore(self) -> int:
        """Restore model, parts and history from the newest intact checkpoint, and return its epoch.

        Without one, return 0 and change nothing. Raises `CheckpointError` if there are checkpoints but
        none is intact, or if the newest is that of another model or of other parts.
        """
        within_epochs = FileCheckpointer(self._files.directory / STEP_FOLDER, self._files.recorder)
        checkpoint = find_newest_checkpoint(self._files, within_epochs, last_epoch=sys.maxsize, identity=None)
        if checkpoint is None:
            return 0
        self._check_parts(checkpoint)
        try:
            load_weights(self._model, checkpoint)
            for name, part in self._parts.items():
                part.load_state_dict(decode_state(checkpoint.optim[name]))
        except (RecordError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint in {self._files.directory} does not fit this model and its optimizers: "
                f"{error}. Build them as they were built for the checkpoint, or remove the folder"
            ) from error
        self.history = history_of(checkpoint)
        epoch = int(checkpoint.trainer["epoch"])
        self._files.remove_partial_files()
        self._apply_retention(epoch)  # a killed process may not have removed what the rule drops
        return epoch

    def _apply_retention(self, epoch: int) -> None:
        saved = [number for number in self._files.list_saved() if number <= epoch]
        for old_epoch in set(saved) - {epoch, *keep_epochs(self._retention, saved, self.history)}:
            self._files.delete(old_epoch)

    def _check_parts(self, checkpoint: Checkpoint) -> None:
        parts = sorted(checkpoint.optim or {})
        if parts != sorted(self._parts):
            raise CheckpointError(
                f"the checkpoint in {self._files.directory} has the parts {', '.join(parts) or 'none'}, and "
                f"the loop has {', '.join(sorted(self._parts)) or 'none'}. Pass the same parts"
            )
