"""build-learner: write the initial model, optimizer and schedule as records of epoch 0.

If ``checkpoint`` is set, write those of an epoch of another run instead, with its logs up to that epoch and
the earlier checkpoints that it kept.
"""

from pathlib import Path

from stages import data, devices, learner, loggers, records, renderers, runs
from stages.contracts.errors import CheckpointError
from stages.contracts.history import History
from stages.contracts.printing import print_text
from stages.learner import from_params
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths, CheckpointConfig
from stages.runs.file_names import CHECKPOINT_FOLDER
from stages.system.files import remove

VERSION = "7"


def build_learner(
    config: BuildLearnerConfig,
    paths: BuildLearnerPaths,
    origin: Path | None = None,
    *,
    portable: bool = False,
) -> None:
    """Write the learner that `fit` starts from: ``learner.json``, and the records of one epoch.

    *origin* is the path at which ``config.checkpoint`` is in the file system now. One thread computes the
    initial weights, so that they do not depend on the number of cores; if *portable*, with the kernels of a
    portable run. Raises `CheckpointError` if the checkpoint is missing, corrupt, or of another model or
    optimizer.
    """
    settings = devices.ComputeSettings(num_threads=1, portable=portable)
    with devices.apply_compute_settings(settings, devices.find_device("cpu")):
        _build(config, paths, origin)


def _build(config: BuildLearnerConfig, paths: BuildLearnerPaths, origin: Path | None) -> None:
    spec = from_params.build_spec(config, data.read_info(paths.dataset))
    start = spec.build(config.seed)
    if config.checkpoint is None:
        _write_new_learner(start, paths.learner)
    elif origin is None or not origin.exists():
        raise CheckpointError(
            f"build_learner.checkpoint: {config.checkpoint} does not exist. Correct it, or set it to null"
        )
    else:
        _write_warm_start(config.checkpoint, start, learner.Origin(origin), paths.learner, config.seed)
    spec.write(paths.learner)


def _write_new_learner(start: "learner.Start", target: Path) -> None:
    builder = learner.LearnerBuilder(target).renderer(renderers.PlainRenderer())
    builder = builder.devices(["cpu"]).with_file_checkpointer(records.DefaultRecorder())
    builder.build(*start).save()


def _write_warm_start(
    wanted: CheckpointConfig, start: "learner.Start", origin: "learner.Origin", target: Path, seed: int
) -> None:
    """Write logs, earlier checkpoints and, last, the one to start after; write nothing if it does not fit."""
    epoch, report = wanted.epoch or 0, None
    if not origin.is_ours:
        history = loggers.read_history(origin.logs_directory) if epoch else ()
        past = learner.PastEpochs(epoch, History(each for each in history if each.epoch <= epoch), seed)
        checkpoint, report = origin.read_record(
            start,
            past,
            _weights_options(wanted),
            restores_optimizer=epoch > 0 and not wanted.weights_only and not wanted.is_of_weights,
        )
    elif wanted.selects:
        raise CheckpointError(
            f"build_learner.checkpoint: only a file of weights has {', '.join(wanted.selects)}, and "
            f"{wanted} is a checkpoint. Set path to a file model-N of it"
        )
    elif wanted.weights_only:
        checkpoint = origin.read_weights(start, wanted.epoch, str(wanted))
    else:
        checkpoint = origin.read_checkpoint(start, wanted.epoch, str(wanted))
    remove(target)
    origin.copy_past(target, epoch)
    runs.FileCheckpointer(target / CHECKPOINT_FOLDER, records.DefaultRecorder()).save(epoch, checkpoint)
    if report and wanted.is_of_weights:
        print_text(str(report))
        report.write(target)


def _weights_options(wanted: CheckpointConfig) -> "learner.WeightsOptions":
    selection = records.Selection(wanted.prefix or "", wanted.rename, wanted.only, wanted.skip)
    return learner.WeightsOptions(wanted.limit, wanted.key, selection, wanted.strict, wanted.layout)
