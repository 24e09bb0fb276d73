"""Warm starts: the state of another run, or of a record that Burn wrote, fitted to a new learner.

State that belongs to the other run alone is not restored: its identity, and its position within an epoch.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.checkpoints import Checkpoint, FileCheckpointer
from stages.checkpoints.file_names import CHECKPOINT_FOLDER, files_of
from stages.contracts.errors import CheckpointError, RecordError
from stages.contracts.files import copy_file
from stages.contracts.history import History, Split
from stages.learner.model_state import ModelState
from stages.learner.run_state import history_tree
from stages.optim import OptimizerConfig, Scheduler, Window, build_optimizer
from stages.records import (
    DefaultRecorder,
    LoadResult,
    Tree,
    load_burn_optimizer,
    load_into,
    read_item,
    record_of,
)

Start = tuple[Any, OptimizerConfig, Scheduler]
"""The return value of `LearnerSpec.build`: model, optimizer config and scheduler."""
SCHEDULED_OPTIONS = {"lr", "initial_lr"}
"""Optimizer options that the schedule sets in each step, so that restored values have no effect."""
STATE_OPTIONS = ("amsgrad", "centered", "momentum")
"""Optimizer options that add state for each parameter."""
NEW_ENTRIES = {"epoch", "layout", "model", "optim", "scheduler", "training_state", "place", "files"}
"""Entries of a trainer record that are made from the new learner and not copied."""
MAX_LISTED_NAMES = 10
WEIGHTS_ONLY = "To restore the weights alone, set weights_only: true in build_learner.checkpoint"


@dataclass(frozen=True)
class PastEpochs:
    """The epochs before a record that has no trainer record."""

    count: int
    """Number of finished epochs."""
    history: History
    """Their values, as far as there are logs."""
    seed: int
    """Default seed of the epochs after them."""


class Origin:
    """The path that a run starts from: an artifact directory, its checkpoints, or a record of a model."""

    def __init__(self, path: Path) -> None:
        self._path = path
        below = path / CHECKPOINT_FOLDER
        self._directory = path.parent if path.is_file() else below if below.is_dir() else path
        self._checkpointer = FileCheckpointer(self._directory, DefaultRecorder())

    @property
    def is_ours(self) -> bool:
        """True if this project wrote the checkpoints, so that they have trainer records."""
        return self._path.is_dir() and bool(self._checkpointer.list_saved())

    @property
    def logs_directory(self) -> Path:
        """The directory that has the logs of both splits, if there are any."""
        is_inner = self._directory.name == CHECKPOINT_FOLDER
        return self._directory.parent if is_inner else self._directory

    def read_checkpoint(self, start: Start, epoch: int | None, name: str) -> Checkpoint:
        """Return the checkpoint of *epoch*, called *name* in messages, fitted to the learner of *start*.

        Its state is restored bit for bit; options (betas, weight decay …), rate and schedule are those of
        *start*. Raises `CheckpointError` if there is none, or if it is of another model or optimizer.
        """
        found = fit_checkpoint(start, self._restore(epoch, name), name)
        sys.stdout.write(f"starting after {name}\n")
        return found

    def read_weights(self, start: Start, epoch: int | None, name: str) -> Checkpoint:
        """Return the learner of *start* with weights, history and number of epochs of a checkpoint.

        Optimizer, schedule and gradient accumulation start from the beginning. The arguments and errors are
        those of `read_checkpoint`.
        """
        found = fit_weights(start, self._restore(epoch, name), name)
        sys.stdout.write(
            f"starting after {name} with its weights; optimizer and schedule start from the beginning\n"
        )
        return found

    def read_record(
        self, start: Start, past: PastEpochs, *, restores_optimizer: bool, limit: int | None
    ) -> Checkpoint:
        """Return the learner of *start* with the weights of a record that Burn wrote.

        The record is the file itself, or that of the last of the *past* epochs in a directory. *limit* is the
        most bytes of content that a record may have. Raises `CheckpointError` if it is of another model, and
        `RecordError` if it cannot be read.
        """
        model_file = self.find_record(past.count)
        optimizer_file = optimizer_file_of(model_file) if restores_optimizer else None
        found, outcome = fit_record(start, model_file, optimizer_file, past=past, limit=limit)
        sys.stdout.write(f"starting from {model_file}: {outcome}\n")
        return found

    def _restore(self, epoch: int | None, name: str) -> Checkpoint:
        saved = self._checkpointer.list_saved()
        if epoch is None or epoch not in saved:
            raise CheckpointError(
                f"build_learner.checkpoint: {name} has no such checkpoint; found those of epoch "
                f"{', '.join(map(str, saved))}. Set epoch to one of them"
            )
        return self._checkpointer.restore(epoch)

    def find_record(self, epoch: int) -> Path:
        """Return the record of the model: the file itself, or that of *epoch* in a directory that Burn wrote.

        Raises `CheckpointError` unless the directory has exactly one record for *epoch*.
        """
        if self._path.is_file():
            return self._path
        found = list(files_of(self._directory, epoch, part="model")) if epoch else []
        if len(found) == 1:
            return found[0]
        names = ", ".join(sorted(path.name for path in found or self._directory.glob("model*"))) or "none"
        raise CheckpointError(
            f"build_learner.checkpoint: {self._directory} must have one record model-<epoch> of the epoch to "
            f"start after; found: {names}. Set epoch to another one, or path to a record"
        )

    def copy_past(self, target: Path, epoch: int) -> None:
        """Copy to *target* the logs up to *epoch* and, if this project wrote them, the checkpoints before it.

        The earlier checkpoints are needed because one of them may be the best.
        """
        for split in Split:
            for number in range(1, epoch + 1):
                for path in sorted((self.logs_directory / split / f"epoch-{number}").glob("*")):
                    if path.is_file():
                        copy_file(path, target / path.relative_to(self.logs_directory))
        earlier = self._checkpointer.list_saved() if self.is_ours else []
        for number in earlier:
            if 0 < number < epoch:
                for path in files_of(self._directory, number):
                    copy_file(path, target / CHECKPOINT_FOLDER / path.name)


def fit_checkpoint(start: Start, checkpoint: Checkpoint, source: str) -> Checkpoint:
    """Return *checkpoint*, which was read from *source*, fitted to the learner of *start*.

    Raises `CheckpointError` if it is of another model or optimizer.
    """
    state = _state(start)
    _check_fits(load_into(state.model, checkpoint.model, strict=False, layout="burn"), source, start)
    own = [_options(group) for group in state.optimizer.param_groups]
    try:
        state.restore(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}. {WEIGHTS_ONLY}") from error
    for group, options in zip(state.optimizer.param_groups, own, strict=True):
        added = [name for name in STATE_OPTIONS if options.get(name) and not group.get(name)]
        if added:
            raise CheckpointError(
                f"{source}: its {start[1].kind} ran without {', '.join(added)}, so the checkpoint lacks the "
                f"state for it. Turn it off. {WEIGHTS_ONLY}"
            )
        group.update(options)
    if getattr(start[2].schedule, "per", "batch") == "epoch":
        start[2].iteration = state.epoch  # the other schedule may have counted batches
    return state.checkpoint(_select_entries(checkpoint))


def fit_weights(start: Start, checkpoint: Checkpoint, source: str) -> Checkpoint:
    """Return the learner of *start* with the weights of *checkpoint*, its history and its number of epochs.

    Raises `CheckpointError` if it is of another model.
    """
    state, trainer = _state(start), checkpoint.trainer
    _check_fits(load_into(state.model, checkpoint.model, strict=False, layout="burn"), source, start)
    state.model.load_state_dict({**state.model.state_dict(), **trainer["model"]})
    state.epoch = int(trainer["epoch"])
    return state.checkpoint({**_select_entries(checkpoint), **_empty_window()})


def fit_record(
    start: Start,
    model_file: Path,
    optimizer_file: Path | None,
    *,
    past: PastEpochs,
    limit: int | None = None,
) -> tuple[Checkpoint, str]:
    """Return the learner of *start* with the weights in *model_file*, which Burn wrote, and a description.

    *optimizer_file* is used if it fits the optimizer. *limit* raises how many bytes of content the files may
    have. Raises `CheckpointError` if the model is another, `RecordError` if its record cannot be read.
    """
    state = _state(start)
    item = read_item(model_file, record_of(state.model), limit=limit)
    _check_fits(load_into(state.model, item, strict=False, source=str(model_file)), str(model_file), start)
    outcome = _restore_optimizer(state, optimizer_file, item, limit=limit)
    state.epoch = past.count
    trainer = {"identity": None, "history": history_tree(past.history), **_empty_window(), "seed": past.seed}
    return state.checkpoint(trainer), f"its weights; {outcome}; the schedule starts from the beginning"


def optimizer_file_of(model_file: Path) -> Path | None:
    """Return the record of the optimizer that belongs to *model_file*; None if there is none."""
    path = model_file.with_name(model_file.name.replace("model", "optim", 1))
    return path if path.is_file() else None


def _restore_optimizer(
    state: ModelState, optimizer_file: Path | None, model_item: Tree, *, limit: int | None
) -> str:
    """Restore the optimizer from *optimizer_file* if it fits; return a description of the outcome."""
    if optimizer_file is None:
        return "the optimizer starts from the beginning"
    try:
        item = read_item(optimizer_file, limit=limit)
        missing = load_burn_optimizer(
            state.optimizer, state.model, item, model_item, source=optimizer_file.name
        )
    except RecordError as error:
        return f"the optimizer starts from the beginning ({error})"
    except_for = f", except for {_list_names(missing)}, which it lacks" if missing else ""
    return f"the optimizer resumes from {optimizer_file.name}{except_for}"


def _state(start: Start) -> ModelState:
    model, optimizer, scheduler = start
    return ModelState(model, build_optimizer(optimizer, model.parameters()), scheduler)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params" and key not in SCHEDULED_OPTIONS}


def _select_entries(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the entries of the trainer record that the new run keeps."""
    return {key: each for key, each in checkpoint.trainer.items() if key not in NEW_ENTRIES} | {
        "identity": None
    }


def _empty_window() -> dict[str, Any]:
    return {"window": Window(1).state_dict(), "guard": {"skipped": 0}}


def _check_fits(loaded: LoadResult, source: str, start: Start) -> None:
    if loaded.fits:
        return
    kinds = {
        "missing": loaded.missing,
        "unexpected": loaded.unexpected,
        "of another shape": loaded.mismatched,
    }
    lines = [f"  {kind}: {_list_names(names)}" for kind, names in kinds.items() if names]
    raise CheckpointError(
        "\n".join(
            [
                f"{source} does not fit the {type(start[0]).__name__} of build_learner.model:",
                *lines,
                "Set build_learner.model to the model that it was saved from",
            ]
        )
    )


def _list_names(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - MAX_LISTED_NAMES} more" if len(every) > MAX_LISTED_NAMES else ""
    return ", ".join(every[:MAX_LISTED_NAMES]) + more
