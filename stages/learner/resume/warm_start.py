"""Warm starts: the state of another run, or the weights of a file, fitted to a new learner.

State that belongs to the other run alone is not restored: its identity, and its position within an epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.contracts.errors import CheckpointError, RecordError
from stages.contracts.history import History, Split
from stages.contracts.printing import print_line
from stages.contracts.text import join_names, to_json
from stages.learner.checks import RuleOptions
from stages.learner.model_state import ModelState
from stages.learner.run_state import history_tree
from stages.optim import (
    GroupedOptimizer,
    OptimizerConfig,
    Scheduler,
    ScheduleUse,
    Window,
    as_scheduler,
    build_model_optimizer,
    schedule_groups,
)
from stages.records import (
    DefaultRecorder,
    LoadResult,
    Selection,
    Tree,
    decode_state,
    load_burn_optimizer,
    load_into,
    read_item,
    record_of,
    skeleton_of,
)
from stages.records.record_tree import Layout
from stages.records.torch_layouts.skeleton import slots
from stages.records.torch_layouts.state_dict import ALL_TENSORS
from stages.runs import Checkpoint, FileCheckpointer
from stages.runs.file_names import BURN_PARTS, CHECKPOINT_FOLDER, files_of
from stages.system.files import copy_file, write_text

Start = tuple[Any, OptimizerConfig | GroupedOptimizer, Scheduler | ScheduleUse]
"""The return value of `LearnerSpec.build`: model, optimizer config and schedule."""
SCHEDULED_OPTIONS = {"lr", "initial_lr", "params"}
"""Entries of a group that are not options of the config: the schedule sets the rates in each step."""
STATE_OPTIONS = ("amsgrad", "centered", "momentum")
"""Optimizer options that add state for each parameter."""
NEW_ENTRIES = {"epoch", "layout", "model", "optim", "scheduler", "training_state", "place", "files", "logs"}
"""Entries of a trainer record that are made from the new learner and not copied."""
ENTRIES_WITH_WEIGHTS = {"history", "seed", "environment"}
"""Entries of a trainer record that are copied with the weights alone."""
MAX_LISTED_NAMES = 10
SELECT_ADVICE = ", or prefix, rename, only, skip or strict: false in build_learner.checkpoint"
REPORT_FILE = "weights.json"
LABELS = {
    "missing": "missing",
    "unexpected": "unexpected",
    "mismatched": "of another shape",
    "skipped": "skipped",
    "initial": "with initial values",
}
"""The label of each outcome of `LoadReport` in messages."""
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


@dataclass(frozen=True)
class WeightsOptions:
    """The options of reading a file of weights."""

    limit: int | None = None
    """Largest number of bytes of content; None: the default limits."""
    key: str | None = None
    """The entry of a ``.pt`` or ``.pth`` file that has the state dict."""
    selection: Selection = ALL_TENSORS
    """The tensors to load, and their new names."""
    strict: bool = True
    """Fail if a selected tensor does not fit; otherwise load those that do."""
    layout: Layout | None = None
    """Whose names and axes the file has; None: those that it states, or else those that fit the model."""


class LoadReport:
    """The names of the tensors of a file of weights, by the outcome of loading them into *model*."""

    def __init__(self, model: Any, loaded: LoadResult) -> None:
        names = dict.fromkeys(slot.name for _, slot in slots(skeleton_of(model)))
        self._loaded = sorted(loaded.state)
        self._others = {outcome: vars(loaded)[outcome] for outcome in LABELS if outcome != "initial"}
        self._others["initial"] = [name for name in names if name not in loaded.state]

    def __str__(self) -> str:
        """Return a line for each outcome, with its number of tensors and some of their names."""
        lines = [
            f"  {LABELS[outcome]}: {len(names)} ({join_names(names, MAX_LISTED_NAMES)})"
            for outcome, names in self._others.items()
            if names
        ]
        return "\n".join([f"  loaded: {len(self._loaded)}", *lines])

    def write(self, directory: Path) -> None:
        """Write every name to ``weights.json`` in *directory*."""
        write_text(directory / REPORT_FILE, to_json({"loaded": self._loaded, **self._others}) + "\n")


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
        *start*. Raises `CheckpointError` if it does not exist, or is of another model or optimizer.
        """
        checkpoint = self._restore(epoch, name)
        state = _load_weights(start, checkpoint, name)
        options = [_options(group) for group in state.optimizer.param_groups]
        schedule = RuleOptions.of(state.scheduler).options
        rates = _initial_rates(state)
        try:
            state.restore(checkpoint)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}. {WEIGHTS_ONLY}") from error
        _check_schedule(schedule, RuleOptions.of(state.scheduler).options, name)
        _check_rates(rates, _initial_rates(state), name)
        for group, before in zip(state.optimizer.param_groups, options, strict=True):
            if added := [option for option in STATE_OPTIONS if before.get(option) and not group.get(option)]:
                raise CheckpointError(
                    f"{name}: its {start[1].kind} ran without {', '.join(added)}, so the checkpoint lacks "
                    f"the state for it. Turn it off. {WEIGHTS_ONLY}"
                )
            group.update(before)
        if isinstance(state.scheduler, Scheduler):
            state.scheduler.count_epochs(state.epoch)  # the other schedule may have counted batches
        print_line(f"starting after {name}")
        return state.checkpoint(_select_entries(checkpoint))

    def read_weights(self, start: Start, epoch: int | None, name: str) -> Checkpoint:
        """Return the learner of *start* with weights, history and number of epochs of a checkpoint.

        Optimizer, schedule and gradient accumulation start from the beginning. The arguments and errors are
        those of `read_checkpoint`.
        """
        checkpoint = self._restore(epoch, name, parts=["model"])
        state, trainer = _load_weights(start, checkpoint, name), checkpoint.trainer
        state.model.load_state_dict({**state.model.state_dict(), **decode_state(trainer["model"])})
        state.epoch = int(trainer["epoch"])
        entries = {key: entry for key, entry in trainer.items() if key in ENTRIES_WITH_WEIGHTS}
        print_line(f"starting after {name} with its weights; optimizer and schedule start from the beginning")
        return state.checkpoint({**entries, **empty_window(), "identity": None})

    def read_record(
        self, start: Start, past: PastEpochs, options: WeightsOptions, *, restores_optimizer: bool
    ) -> tuple[Checkpoint, LoadReport]:
        """Return the learner of *start* with the weights of a file, and the report of their names.

        The file is the path itself, or the record of the last of the *past* epochs in a directory; that of
        the optimizer beside it is used if it fits. Raises `CheckpointError` if it is of another model, and
        `RecordError` if it cannot be read.
        """
        model_file = self.find_record(past.count)
        optimizer_file = optimizer_file_of(model_file) if restores_optimizer else None
        state, source = _state(start), str(model_file)
        item = read_item(model_file, record_of(state.model), limit=options.limit, key=options.key)
        loaded = load_into(
            state.model,
            item,
            strict=False,
            source=source,
            selection=options.selection,
            layout=options.layout,
        )
        report = LoadReport(state.model, loaded)
        if options.strict:
            _check_fits(loaded, source, start, SELECT_ADVICE)
        elif not loaded.state:
            raise CheckpointError(
                f"{source} has no tensor that fits the {type(start[0]).__name__}:\n{report}"
            )
        outcome = restore_optimizer(state, optimizer_file, item, limit=options.limit)
        state.epoch = past.count
        history = history_tree(past.history)
        trainer = {"identity": None, "history": history, **empty_window(), "seed": past.seed}
        print_line(
            f"starting from {model_file}: its weights; {outcome}; the schedule starts from the beginning"
        )
        return state.checkpoint(trainer), report

    def _restore(self, epoch: int | None, name: str, parts: Sequence[str] = BURN_PARTS) -> Checkpoint:
        saved = self._checkpointer.list_saved()
        if epoch is None or epoch not in saved:
            raise CheckpointError(
                f"build_learner.checkpoint: {name} has no such checkpoint; found those of epoch "
                f"{', '.join(map(str, saved))}. Set epoch to one of them"
            )
        return self._checkpointer.restore(epoch, parts)

    def find_record(self, epoch: int) -> Path:
        """Return the record of the model: the file itself, or that of *epoch* in a directory that Burn wrote.

        Raises `CheckpointError` unless the directory has exactly one record for *epoch*.
        """
        if self._path.is_file():
            return self._path
        files = list(files_of(self._directory, epoch, part="model")) if epoch else []
        if len(files) == 1:
            return files[0]
        names = ", ".join(sorted(path.name for path in files or self._directory.glob("model*"))) or "none"
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


def _load_weights(start: Start, checkpoint: Checkpoint, source: str) -> ModelState:
    """Return the learner of *start* with the weights of *checkpoint*, called *source* in messages.

    Raises `CheckpointError` if it is of another model.
    """
    state = _state(start)
    _check_fits(load_into(state.model, checkpoint.model, strict=False, layout="burn"), source, start)
    return state


def _check_schedule(own: Mapping[str, Any], saved: Mapping[str, Any], source: str) -> None:
    """Raise `CheckpointError` if a scheduler of torch was *saved* with other options than its *own*."""
    if changed := [name for name in own if name in saved and own[name] != saved[name]]:
        raise CheckpointError(
            f"{source}: its schedule ran with {', '.join(f'{name}: {saved[name]}' for name in changed)}, and "
            f"a scheduler of torch cannot resume with other options. Set these. {WEIGHTS_ONLY}"
        )


def _initial_rates(state: ModelState) -> list[Any]:
    """Return the rate of each group at which a scheduler of torch began; None if it does not store it."""
    return [group.get("initial_lr") for group in state.optimizer.param_groups]


def _check_rates(own: Sequence[Any], saved: Sequence[Any], source: str) -> None:
    """Raise `CheckpointError` if a scheduler of torch was *saved* with other initial rates than its *own*."""
    for rate, before in zip(own, saved, strict=True):
        if rate != before and None not in (rate, before):
            raise CheckpointError(
                f"{source}: its schedule began at the rate {before:g}, and this one begins at {rate:g}. A "
                "scheduler of torch cannot resume at another rate. Set the learning rates and the arguments "
                f"of the schedule to those of the checkpoint. {WEIGHTS_ONLY}"
            )


def optimizer_file_of(model_file: Path) -> Path | None:
    """Return the record of the optimizer that belongs to *model_file*, or None."""
    path = model_file.with_name(model_file.name.replace("model", "optim", 1))
    return path if path.is_file() else None


def restore_optimizer(
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
    except_for = f", except for {join_names(missing, MAX_LISTED_NAMES)}, which it lacks" if missing else ""
    return f"the optimizer resumes from {optimizer_file.name}{except_for}"


def _state(start: Start) -> ModelState:
    model, config, schedule = start
    optimizer = build_model_optimizer(config, model)
    scheduler = as_scheduler(optimizer, schedule)
    if isinstance(config, GroupedOptimizer):
        scheduler = schedule_groups(config, model, optimizer, scheduler)
    return ModelState(model, optimizer, scheduler)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in SCHEDULED_OPTIONS}


def _select_entries(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the entries of the trainer record that the new run keeps."""
    entries = {key: entry for key, entry in checkpoint.trainer.items() if key not in NEW_ENTRIES}
    return {**entries, "identity": None}


def empty_window() -> dict[str, Any]:
    """Return the entries of a trainer record for an accumulation window without a batch."""
    return {"window": Window(1).state_dict(), "guard": {"skipped": 0}}


def _check_fits(loaded: LoadResult, source: str, start: Start, advice: str = "") -> None:
    if loaded.fits:
        return
    lists = {LABELS[kind]: vars(loaded)[kind] for kind in ("missing", "unexpected", "mismatched")}
    lines = [f"  {label}: {join_names(names, MAX_LISTED_NAMES)}\n" for label, names in lists.items() if names]
    raise CheckpointError(
        f"{source} does not fit the {type(start[0]).__name__} of build_learner.model:\n{''.join(lines)}"
        f"Set build_learner.model to the model that it was saved from{advice}"
    )
