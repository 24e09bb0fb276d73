"""The state of a run: everything that changes while it trains, and how a checkpoint stores it.

The history is stored as one tensor of values per metric, so that an epoch adds a few bytes.
"""

import json
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from stages import distributed
from stages.contracts.errors import CheckpointError
from stages.contracts.history import Direction, History, Split, Value
from stages.contracts.text import to_json
from stages.devices.compilation import CompiledShapes
from stages.devices.rng import derive_seed, seed_generators
from stages.distributed import GradientExchange, RankGroup, RankWindow
from stages.learner.model_state import ModelState
from stages.learner.options import LearnerOptions
from stages.learner.streams import Streams
from stages.optim import DeviceGuard, Guard, Window
from stages.optim.mixed_precision import MixedPrecision
from stages.records import Tree
from stages.runs import Checkpoint
from stages.runs.file_names import ENVIRONMENT_FILE
from stages.runs.manifest import LogLedger
from stages.system.files import sync_trees, write_text

INTEGERS = (torch.int32, torch.int64)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoopPosition:
    """A position between two batches of an epoch. The names of its fields are stored in checkpoints."""

    epoch: int
    """The epoch in progress, from 1."""
    split: Split
    iteration: int
    """Number of batches of the split before this position."""
    items: int = 0
    """Number of samples in them."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """The random state at the start of the split, from which loaders derive their order."""
    now: Mapping[str, Any] = field(default_factory=dict)
    """The random state at this position."""
    sums: Mapping[str, Any] = field(default_factory=dict)
    """The state of the meter at this position."""
    logs: Mapping[str, Any] = field(default_factory=dict)
    """The position of each log."""
    shapes: Mapping[str, Any] = field(default_factory=dict)
    """The shapes of the batches that run compiled; empty if the run does not compile the model."""
    batch_sizes: Sequence[int] = ()
    """The number of samples in the first batch; empty if it is unknown."""
    ranks: Sequence[Mapping[str, Any]] = ()
    """The state of each further rank: ``before``, ``now``, ``shapes``, the ``buffers`` and the
    ``training_state`` of the model, and ``loader``, the random state in which all ranks load the batches of a
    loader that cannot load a share."""

    def to_tree(self) -> dict[str, Any]:
        """Return the position as a tree that a record can hold."""
        return {**vars(self), "split": self.split.value}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "LoopPosition":
        """Return the position that `to_tree` converted. Raises `CheckpointError` for any other tree."""
        try:
            return cls(**{**tree, "split": Split(tree["split"])})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the position in the epoch has an unknown format: {error!r}. Resume with the version of "
                "this project that wrote the checkpoint, or after an epoch"
            ) from error

    @property
    def sort_key(self) -> tuple[int, bool, int]:
        """A key that sorts positions from first to last."""
        return self.epoch, self.split is Split.VALID, self.iteration

    def __str__(self) -> str:
        part = "validation" if self.split is Split.VALID else "training"
        return f"in epoch {self.epoch}, after batch {self.iteration} of {part}"


class RunState:
    """Model, history, accumulation window, guard, seed, position and streams of a run.

    Only the loop changes it, after `restore` has resumed it from a checkpoint.
    """

    def __init__(
        self,
        model: ModelState,
        options: LearnerOptions,
        device: torch.device,
        group: RankGroup,
    ) -> None:
        self.model = model
        self.group = group
        self.is_sharded = model.is_sharded
        """True if the ranks shard the parameters."""
        self.window = _build_window(options, model, group)
        self.compiled_shapes = CompiledShapes() if options.compile else None
        """The shapes of the batches that run compiled; None if the run does not compile the model."""
        self.precision = MixedPrecision(options.compute.precision, device, fast_path=options.fast_path)
        names = [name for name, _ in model.model.named_parameters()]
        scaler = self.precision.scaler
        self.guard = Guard(options.non_finite, names, scaler)
        # the host decides if an overflow in fp16 counts as a batch of a longer window
        can_check = group.size == 1 and _can_check_on_device(model, options, device)
        if can_check and (scaler is None or self.window.length == 1):
            self.guard = DeviceGuard(names, device, scaler)
        self.history = History()
        self.streams = Streams()
        self.open_epoch: int | None = None
        """The epoch in progress, in which the weights belong to no checkpoint of an epoch."""
        self.position: LoopPosition | None = None
        """The position at which to resume in the epoch; None to begin at its start."""
        self.is_restored = False
        """True after `restore`."""
        self.resumed: str | None = None
        """A description of the position that the run resumed at, such as "after epoch 3"."""
        self._seed = options.seed
        self._identity = options.identity
        self._directory = options.directory
        strategy = "fsdp" if self.is_sharded else "ddp"
        self._environment = describe_environment(
            device, options.compute.precision, ranks=group.size, strategy=strategy
        )
        self.machine = describe_machine(device)
        """The build of torch and the device, which no checkpoint contains."""

    @property
    def epoch(self) -> int:
        """The last finished epoch; 0 before the first."""
        return self.model.epoch

    def derive_seed(self, *path: int | str) -> int:
        """Return the seed for *path*, derived from that of the run or else from `torch.initial_seed`."""
        if self._seed is None:
            self._seed = torch.initial_seed()
        return derive_seed(self._seed, *path)

    def share_seed(self, *, is_resumed: bool) -> None:
        """Use the seed of rank 0 on every rank; a run that *is_resumed* without one has its previous seed."""
        seed = torch.initial_seed() if self._seed is None and not is_resumed else self._seed
        self._seed = cast(int | None, self.group.broadcast(seed))

    def seed_generators(self, epoch: int) -> None:
        """Seed the global generators for *epoch*; each rank draws numbers of its own."""
        path = (epoch, "rank", self.group.rank) if self.group.rank else (epoch,)
        seed_generators(self.derive_seed(*path))

    def wrap_step(self, step: Callable[[Any], Any], split: Split) -> Callable[[Any], Any]:
        """Return *step*, the train or valid step of the model, such that it has the precision of the run."""
        shapes = self.compiled_shapes
        if self.precision.is_full and shapes is None:
            return step

        def run(batch: Any) -> Any:
            with self.precision.autocast(), shapes.context(split, batch) if shapes else nullcontext():
                return step(batch)

        return run

    def begin_epoch(self, epoch: int) -> None:
        """Mark *epoch* as in progress."""
        self.open_epoch = epoch

    def finish_epoch(self, epoch: int, *, is_validated: bool) -> None:
        """Mark *epoch* as finished, and end it for the learning rate schedule."""
        self.open_epoch = None
        self.model.epoch = epoch
        self.streams.save()
        self.model.end_schedule_epoch(self.history, is_validated=is_validated)

    def checkpoint(self, position: LoopPosition | None = None) -> Checkpoint:
        """Return a checkpoint of the last finished epoch, or of *position* in the epoch in progress."""
        trainer = {
            "identity": self._identity,
            "history": history_tree(self.history),
            "window": self.window.state_dict(),
            "guard": self.guard.state_dict(),
            "seed": torch.initial_seed() if self._seed is None else self._seed,
            "environment": self._environment,
        }
        if self.precision.scaler is not None:
            trainer["scaler"] = self.precision.scaler.state_dict()
        if streams := self.streams.state_dict():
            trainer["streams"] = streams
        if position is not None:
            trainer["place"] = position.to_tree()
        elif self._identity is None and (logs := LogLedger(self._directory).describe(self.epoch)):
            sync_trees(self._directory / name for name in logs)
            trainer["logs"] = logs  # of a run in a store, its ledger has them
        return self.model.checkpoint(trainer)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from *checkpoint*. Raises `CheckpointError` if it does not fit."""
        trainer = checkpoint.trainer
        self.is_restored = True
        self.model.resume(checkpoint)
        self.history = history_of(checkpoint)
        self.window.load_state_dict(trainer["window"])
        self.guard.load_state_dict(trainer["guard"])
        if self.precision.scaler is not None and "scaler" in trainer:
            self.precision.scaler.load_state_dict(trainer["scaler"])
        self.streams.load_state_dict(trainer.get("streams", {}))
        if trainer.get("place") is not None:
            self.position = LoopPosition.from_tree(trainer["place"])
        self._restore_seed(trainer["seed"])
        if self.position or self.epoch:
            self._note_resume(trainer.get("environment", {}))

    def _note_resume(self, environment: Mapping[str, Any]) -> None:
        self.resumed = str(self.position) if self.position else f"after epoch {self.epoch}"
        saved = read_environment(environment, self._directory)
        then, now = describe_differences(saved, self._environment | self.machine)
        if then:
            log.warning(
                "the checkpoint was made with %s, and this run uses %s: its numbers may differ in their last "
                "digits from those of an uninterrupted run",
                then,
                now,
            )

    def _restore_seed(self, seed: int) -> None:
        """Use *seed* unless the options have one."""
        if self._seed is None:
            self._seed = seed
        elif seed != self._seed and (self.epoch or self.position):
            log.warning(
                "the seed is %d, but the checkpoint was made with %d: the run will not equal an "
                "uninterrupted one. Set the previous seed to resume exactly",
                self._seed,
                seed,
            )


def _build_window(options: LearnerOptions, model: ModelState, group: RankGroup) -> Window:
    if group.size == 1:
        return Window.of(options.accumulation)
    if model.is_sharded:
        return distributed.ShardedWindow(options.accumulation, list(model.model.parameters()))
    return RankWindow(options.accumulation, GradientExchange(group, list(model.model.parameters())))


def _can_check_on_device(model: ModelState, options: LearnerOptions, device: torch.device) -> bool:
    """Return whether *device* can skip an update without the host."""
    return device.type != "cpu" and options.non_finite.kind == "stop" and model.reads_flag


def history_tree(history: History) -> Tree:
    """Return *history* as a tree that a record holds: a map per metric and split.

    ``epochs`` is the first epoch if the others follow without a gap, else a tensor of them; ``values`` is a
    tensor of as many 64-bit floats.
    """
    return [
        {
            "split": split.value,
            "metric": metric,
            "epochs": _epochs_tree(series.epochs),
            "values": torch.from_numpy(np.array(series.values)),
        }
        for (split, metric), series in history.columns().items()
    ]


def history_of(checkpoint: Checkpoint) -> History:
    """Return the values up to *checkpoint*. Raises `CheckpointError` if they are not a history."""
    history = History()
    try:
        for entry in checkpoint.trainer["history"]:
            for value in _values(entry):
                history.add(value)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot read the history in the checkpoint: {error}. Resume with the version of this "
            "project that wrote the checkpoint"
        ) from error
    return history


def best_epoch(
    checkpoint: Checkpoint,
    metric: str = "Loss",
    split: Split = Split.VALID,
    direction: Direction = Direction.LOWEST,
) -> int:
    """Return the epoch up to *checkpoint* with the best value of *metric*, by default the validation loss.

    Return its own epoch if the metric is one of the validation and the run has none. Raises `CheckpointError`
    if no epoch has a finite value.
    """
    history = history_of(checkpoint)
    best = history.best(split, metric, direction)
    if split is Split.VALID and all(column_split is Split.TRAIN for column_split, _ in history.columns()):
        return int(checkpoint.trainer["epoch"])
    if best is None:
        name = "validation loss" if (split, metric) == (Split.VALID, "Loss") else f"{split} {metric}"
        raise CheckpointError(
            f"no epoch has a finite {name}, so there is no best epoch: choose an epoch by its number"
        )
    return best


def _epochs_tree(epochs: Sequence[int]) -> int | Tensor:
    is_gapless = epochs[-1] - epochs[0] + 1 == len(epochs)
    return epochs[0] if is_gapless else torch.tensor(epochs, dtype=torch.int64, device="cpu")


def _values(entry: Mapping[str, Any]) -> list[Value]:
    split, metric, values, epochs = Split(entry["split"]), entry["metric"], entry["values"], entry["epochs"]
    if not isinstance(values, Tensor) or values.dtype != torch.float64 or values.dim() != 1:
        raise ValueError(f"the values of {split} {metric} are not a 1-D tensor of 64-bit floats")
    if isinstance(epochs, Tensor) and epochs.dtype in INTEGERS and epochs.shape == values.shape:
        numbers: Sequence[int] = epochs.tolist()
    elif type(epochs) is int:
        numbers = range(epochs, epochs + len(values))
    else:
        raise ValueError(f"the epochs of {split} {metric} are neither one integer nor one per value")
    pairs = zip(numbers, values.tolist(), strict=True)
    return [Value(number, split, metric, value) for number, value in pairs]


def describe_environment(
    device: torch.device, precision: str, *, ranks: int = 1, strategy: str = "ddp"
) -> dict[str, str]:
    """Return the environment as a checkpoint contains it, without anything about the machine."""
    version = torch.__version__.partition("+")[0]
    environment = {"torch": version, "device": device.type, "precision": precision}
    if ranks > 1:
        environment["ranks"] = str(ranks)
    if strategy != "ddp":
        environment["strategy"] = strategy
    return environment


def describe_machine(device: torch.device) -> dict[str, str]:
    """Return the build of torch, with its local label, the machine, and the libraries of *device*."""
    machine = {"torch build": str(torch.__version__), "machine": platform.machine()}
    if device.type == "cuda":
        machine["device name"] = torch.cuda.get_device_name(device)
        machine["cuda"] = str(torch.version.cuda)
        machine["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return machine


def write_machine(directory: Path, machine: Mapping[str, str]) -> None:
    """Write *machine* beside the checkpoints in *directory*; log an error: no result depends on it."""
    try:
        write_text(directory / ENVIRONMENT_FILE, to_json(machine) + "\n")
    except OSError as error:
        log.warning("a resume on another machine will not be reported: %s", error)


def read_environment(recorded: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the environment of a checkpoint in *directory*: its *recorded* part, and the file beside it."""
    environment = dict(recorded)
    with suppress(OSError, ValueError, TypeError):  # the file is missing or damaged
        environment |= json.loads((directory / ENVIRONMENT_FILE).read_bytes())
    return environment


def describe_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str]:
    """Return the entries that both *then* and *now* have and that differ, as text."""
    default = {"ranks": "1", "strategy": "ddp"}
    before, after = ({**default, **versions} if then else {} for versions in (then, now))
    keys = [key for key, value in after.items() if before.get(key, value) != value]
    return ", ".join(f"{key} {before[key]}" for key in keys), ", ".join(f"{key} {after[key]}" for key in keys)
