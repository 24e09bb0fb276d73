"""Checkpoints that Burn wrote into the directory of a run: resuming from them, and protecting them."""

from itertools import count
from pathlib import Path

import torch

from stages.contracts.errors import CheckpointError, RecordError
from stages.contracts.history import History, Split
from stages.contracts.printing import print_line
from stages.learner.checks import RuleOptions
from stages.learner.model_state import ModelState
from stages.learner.options import EXPERIMENT_LOG, LearnerOptions, read_directory_history
from stages.learner.resume.warm_start import empty_window, optimizer_file_of, restore_optimizer
from stages.learner.run_state import history_tree
from stages.optim import load_burn_schedule
from stages.records import DefaultRecorder, Tree, load_into, read_item, record_of, to_021
from stages.runs import Checkpoint, FileCheckpointer
from stages.runs.file_names import CHECKPOINT_FOLDER, ENVIRONMENT_FILE, TRAINER, files_of


def read_burn_checkpoint(
    state: ModelState, checkpointer: FileCheckpointer, epoch: int, options: LearnerOptions
) -> Checkpoint:
    """Return the checkpoint of *epoch* that Burn wrote, read into *state*, and print what resumes from it.

    Raises `CheckpointError` if the model does not fit.
    """
    try:
        [model_file] = files_of(checkpointer.directory, epoch, part="model")
        item = read_item(model_file, record_of(state.model))
        load_into(state.model, item, source=str(model_file), layout="burn")
    except (RecordError, ValueError) as error:
        raise CheckpointError(f"cannot resume from epoch {epoch} of Burn: {error}") from error
    outcomes = [restore_optimizer(state, optimizer_file_of(model_file), item, limit=None)]
    outcomes.append(_restore_schedule(state, checkpointer.directory, epoch))
    print_line(f"resuming after epoch {epoch} of Burn, from {model_file}: {'; '.join(outcomes)}")
    state.epoch = epoch
    past = History(value for value in read_directory_history(options.directory) if value.epoch <= epoch)
    seed = torch.initial_seed() if options.seed is None else options.seed
    trainer = {"identity": options.identity, "history": history_tree(past), **empty_window(), "seed": seed}
    return state.checkpoint(trainer)


def _restore_schedule(state: ModelState, directory: Path, epoch: int) -> str:
    """Continue the schedule of the Burn run; return a description of the outcome."""
    files = list(files_of(directory, epoch, part="scheduler"))
    if len(files) != 1:
        return "the schedule starts from the beginning"
    try:
        record: Tree = read_item(files[0], to_021(RuleOptions.of(state.scheduler).burn_state()))
        load_burn_schedule(state.scheduler, record)
    except RecordError as error:
        return f"the schedule starts from the beginning ({error})"
    return f"the schedule resumes from {files[0].name}"


def protect_files(options: LearnerOptions, epoch: int) -> None:
    """Keep the files of other programs, such as Burn, in the directory of a run that starts after *epoch*.

    Logs are moved aside unless a run of this project has left a checkpoint, the file about its machine, or
    lines in ``experiment.log``.
    Raises `CheckpointError` if Burn has checkpoints of later epochs, which the run would
    replace together with their logs.
    """
    directory = options.directory
    folder = directory / CHECKPOINT_FOLDER
    epochs = FileCheckpointer(folder, DefaultRecorder()).list_burn_epochs()
    if epochs and epochs[-1] > epoch:
        raise CheckpointError(
            f"{folder} has checkpoints that Burn wrote, up to epoch {epochs[-1]}, and a run after epoch "
            f"{epoch} would replace them and the logs. Resume with checkpoint({epochs[-1]}) or "
            f'checkpoint("auto") for at least {epochs[-1]} epochs, or use another directory'
        )
    if not epoch and options.loggers is None and options.identity is None:
        _move_logs(directory)


def _move_logs(directory: Path) -> None:
    folders = [directory / split for split in Split if any(directory.glob(f"{split}/epoch-*"))]
    is_own = any(directory.glob(f"*/*{TRAINER}-*")) or (directory / ENVIRONMENT_FILE).is_file()
    log = directory / EXPERIMENT_LOG
    if not folders or is_own or (log.is_file() and b" stages::" in log.read_bytes()):
        return
    numbers = (number for number in count(1) if not any(directory.glob(f"*.{number}")))
    suffix = f".{next(numbers)}"
    for folder in folders:
        folder.rename(folder.with_name(folder.name + suffix))
    print_line(
        f"moved the logs in {directory}, which no run of this project wrote, to folders named *{suffix}"
    )
