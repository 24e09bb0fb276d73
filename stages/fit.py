"""fit: train the learner that build-learner wrote, and publish checkpoints, logs, metrics and plots."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages import data, devices, learner, loggers, runs
from stages.contracts.errors import RunInterruptedError, StageError
from stages.contracts.printing import print_line
from stages.learner import from_params
from stages.params.fit_params import FitConfig, FitContext, FitPaths
from stages.runs.file_names import SPEC_FILE
from stages.runs.key import leaves
from stages.system.files import copy_file

VERSION = "13"
MAX_ATTEMPTS = 2
"""Trainings in one call before damage to the run store is an error."""


def fit(config: FitConfig, paths: FitPaths, context: FitContext | None = None) -> Path:
    """Train through all epochs, print the summary, publish the results, and return the path of the run store.

    The run works in its own store and resumes there if it was interrupted or now has more epochs; a finished
    run that dvc.lock records starts over. Damaged results are trained again. Of several ranks, rank 0 calls
    this function, and the others `follow_main`. Raises `RunInterruptedError` if the run was asked to stop.
    """
    context = context or FitContext()
    entries = key_entries(config, paths, context.code)
    with runs.explain_disk_errors(paths.runs), runs.open_store(paths.runs, entries) as store:
        continuation = runs.Continuation(store, initial=paths.learner, marker=SPEC_FILE)
        continuation.prepare(config.num_epochs, context.recorded, from_params.device_kinds(config))
        for _ in range(MAX_ATTEMPTS):
            if store.finished is None:
                context.group.announce(training=True)
                _train(config, paths, store, context)
            if not (problems := runs.publish_results(store, paths.outputs, paths.telemetry_outputs)):
                break
            continuation.repair(problems)
        else:
            raise StageError(f"{store.path}: {', '.join(problems)} changed after retraining. Check the disk")
    context.group.announce(training=False)
    runs.prune_after_run(paths.runs, store.key)
    return store.path


def key_entries(config: FitConfig, paths: FitPaths, code: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the key of a run: everything that can change a number in it."""
    length = {"num_epochs": config.num_epochs} if _ends_with_run(paths.learner) else {}
    return {
        "version": VERSION,
        "params": config.key_params() | length,
        "inputs": {"learner": runs.content_hash(paths.learner), "data": runs.content_hash(paths.data)},
        "code": dict(code),
    }


def _ends_with_run(directory: Path) -> bool:
    """Return whether a schedule has shares of the run, so that a run of more epochs is another run."""
    spec = learner.LearnerSpec.read(directory).model_dump(mode="json")
    schedules = [part.get("schedule") for part in (spec, *spec.get("parameter_groups", ()))]
    return any(str(value).endswith("%") for value in leaves({"schedules": schedules}).values())


def _train(config: FitConfig, paths: FitPaths, store: "runs.RunStore", context: FitContext) -> None:
    """Train the remaining epochs in *store*, and write metrics and plots there."""
    copy_file(paths.data / data.DATASET_FILE, store.path / data.DATASET_FILE)  # for load_model
    plots = loggers.PlotPaths(paths.plots, paths.iterations, paths.confusion).relocate(store.path / "plots")
    builder = from_params.configure_builder(config, learner.LearnerBuilder(store.path), context)
    builder.summary().identity(store.key).checkpoint("auto").with_progress_logger(runs.heartbeat_of(store))
    run = builder.build(*learner.LearnerSpec.read(paths.learner).build(config.seed))
    runs.check_space(store.path, config.max_checkpoints * run.checkpoint_bytes)
    if run.resumed:
        print_line(f"resuming run {store.key} {run.resumed}")
    elif _ends_with_run(paths.learner):
        print_line(f"the schedule ends after {config.num_epochs} epochs: more of them are another run")
    train, valid = from_params.build_loaders(
        config, data.read(paths.data, ["valid"], allowed=context.allowed)
    )
    with store.explain_removal():
        run.fit(train, valid)
    cells = learner.confusion_cells(run, valid, devices.derive_seed(config.seed, "confusion"))
    if run.interrupted:
        context.group.announce(training=False)
        raise RunInterruptedError(
            f"stopped after epoch {run.epoch} of {config.num_epochs}, and saved in {store.path}. Nothing was "
            "recorded: `dvc checkout` restores the last finished run. Run the same command again to resume"
        )
    context.check_reads()
    store.check_exists()
    loggers.write_results(run.history, cells, store.path, plots)
    kept = from_params.epochs_to_keep(config, run.history, run.epoch, paths.learner)
    manifest = runs.results_manifest(store.path, run.epoch, kept)
    facts = {"num_epochs": config.num_epochs, "epoch": run.epoch, "devices": from_params.device_kinds(config)}
    store.finish(facts, manifest)
    runs.record_duration(store.path)
