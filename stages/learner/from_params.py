"""The parts that the sections ``build_learner`` and ``fit`` describe: spec, devices, builders and loaders."""

import logging
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stages import data, devices, distributed, learner, loggers, metrics, records, runs
from stages.contracts import plugins
from stages.contracts.burn import choose_version
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import ParamsError, RunInterruptedError
from stages.contracts.history import History, Split
from stages.contracts.text import to_json
from stages.loggers.tracking import RunDescription
from stages.params.build_learner_params import BuildLearnerConfig
from stages.params.fit_params import HOOKS, FitConfig, FitContext, FitPaths
from stages.params.save_model_params import SaveModelPaths
from stages.runs.file_names import CHECKPOINT_FOLDER, list_epochs
from stages.system.files import remove, write_text

ACCELERATOR_NODES = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")
"""Device files of which Linux has at least one if torch can use an accelerator."""
METRICS_FILE = "metrics.json"
"""The values over the test split, in its directory; null without a test split, which `dvc metrics` skips."""

log = logging.getLogger(__name__)


def list_devices(config: FitConfig) -> tuple[str, ...]:
    """Return the name of each device of this machine, one for each rank."""
    if config.device == "all":
        return tuple(name for name in devices.list_devices() if name != "cpu") or ("cpu",)
    return (config.device,) if isinstance(config.device, str) else config.device


def device_kinds(config: FitConfig) -> list[str]:
    """Return the kind of the device of each rank, such as ``cuda``."""
    kinds = [_best_kind() if name == "auto" else name.partition(":")[0] for name in list_devices(config)]
    return kinds if len(kinds) > 1 else kinds * distributed.count_ranks()


def _best_kind() -> str:
    """Return the kind that ``auto`` resolves to; load torch only if there may be an accelerator."""
    if sys.platform == "linux" and not any(any(Path("/dev").glob(name)) for name in ACCELERATOR_NODES):
        return "cpu"
    return devices.find_device("auto").type


def join_ranks(config: FitConfig) -> "distributed.RankGroup":
    """Return the group of this rank, after all ranks have called this; a group of one without a launcher.

    Raises `BuilderError` if `list_devices` has no device for it.
    """
    names = list_devices(config)
    distributed.find_rank_device(names)
    return distributed.join_group(names, config.rank_timeout_seconds)


def prepare_process(config: FitConfig) -> None:
    """Have torch choose the kernels of a portable run; call this before torch first computes."""
    if config.portable:
        devices.prepare_portable()


def build_spec(config: BuildLearnerConfig, info: "data.DatasetInfo") -> "learner.LearnerSpec":
    """Return the content of ``learner.json`` for the data that *info* describes."""
    return learner.LearnerSpec(
        model=config.model,
        optimizer=config.optimizer,
        schedule=config.schedule,
        input_shape=info.input_shape,
        num_classes=info.num_classes,
        num_outputs=info.num_outputs,
        parameter_groups=config.parameter_groups,
        freeze=config.freeze,
        label_smoothing=config.label_smoothing,
        class_weights=_resolve_weights(config, info),
        vocabulary_size=info.vocabulary_size,
    )


def _resolve_weights(config: BuildLearnerConfig, info: "data.DatasetInfo") -> tuple[float, ...] | None:
    """Return the weight of each class. Raises `ParamsError` if they do not fit the data."""
    weights, counts = config.class_weights, (info.class_counts or {}).get("train", [])
    if weights is None:
        return None
    if not counts or not isinstance(counts, list):
        raise ParamsError(
            "build_learner.class_weights needs classes; the targets are "
            f"{'numbers' if info.task == 'regression' else info.task}"
        )
    if weights == "balanced" and 0 in counts:
        raise ParamsError(
            f"build_learner.class_weights: class {counts.index(0)} has no sample in the train split, so "
            "that its balanced weight would be infinite. Set a list of weights"
        )
    if weights == "balanced":
        return tuple(sum(counts) / (len(counts) * count) for count in counts)
    if len(weights) != len(counts):
        raise ParamsError(
            f"build_learner.class_weights: found {len(weights)} weights for {len(counts)} classes. Set "
            "one for each class"
        )
    return tuple(map(float, weights))


def build_loaders(
    config: FitConfig, prepared: "data.Prepared"
) -> "tuple[data.DataLoader, data.DataLoader | None]":
    """Return the loaders of the train and the valid split of *prepared*; None without a valid split."""
    valid = None if prepared.valid is None else build_loader(config, prepared, "valid")
    return build_loader(config, prepared, "train"), valid


def build_loader(config: FitConfig, prepared: "data.Prepared", split: str) -> "data.DataLoader":
    """Return the loader of one split of *prepared*; only the train split is shuffled and augmented.

    With several views, all splits are augmented.
    """
    builder = _loader_builder(config, prepared.info)
    if config.overfit_batches is not None:
        return builder.limit_batches(config.overfit_batches).build(prepared.train)
    builder.limit_batches(config.limit_batches.of(split))
    if split == "train":
        builder.shuffle(config.seed).augment(_build_augmentations(config))
    return builder.build(prepared.by_name()[split])


def _build_augmentations(config: FitConfig) -> "list[data.Augmentation]":
    return [data.build_augmentation(augmentation) for augmentation in config.augment]


def build_test_loader(
    config: FitConfig, dataset: "data.Dataset", info: "data.DatasetInfo"
) -> "data.DataLoader":
    """Return a loader of *dataset*, which is not shuffled, with the normalization in *info*."""
    return _loader_builder(config, info).build(dataset)


def _loader_builder(config: FitConfig, info: "data.DatasetInfo") -> "data.DataLoaderBuilder":
    builder = (
        data.DataLoaderBuilder(data.build_batcher(config.batcher, info.scaling))
        .batch_size(config.batch_size)
        .num_workers(config.num_workers)
        .prefetch(config.prefetch)
        .resident(config.resident)
    )
    if config.views > 1:
        builder.views(config.views).augment(_build_augmentations(config))
    return builder.bucket() if config.bucket else builder


def configure_builder(
    config: FitConfig, builder: "learner.LearnerBuilder", context: FitContext
) -> "learner.LearnerBuilder":
    """Set every option of *builder* that *config* and the caller of the stage have, and return it."""
    builder = (
        builder.metrics(*_build_metrics(config))
        .hooks(*map(build_hook, config.hooks))
        .num_epochs(config.num_epochs)
        .sanity_check(config.sanity_check)
        .validate_every(config.validate_every)
        .seed(config.seed)
        .devices(list_devices(config))
        .strategy(config.strategy)
        .precision(config.precision)
        .num_threads(config.num_threads)
        .fast_path(config.fast_path)
        .step(config.step)
        .burn(config.burn)
        .non_finite(config.non_finite)
        .with_file_checkpointer(records.build_recorder(config.recorder))
        .with_checkpointing_strategy(config.keep.rule())
        .checkpoint_every(steps=config.checkpoint_every_steps, seconds=config.checkpoint_every_seconds)
        .max_unsaved(config.max_unsaved_seconds)
    )
    window = config.grads_accumulation
    leftover = window.leftover if "leftover" in window.model_fields_set else None
    builder.grads_accumulation(window.batches, reduction=window.reduction, leftover=leftover)
    _add_loggers(config, builder, context)
    if context.interrupter:
        builder.with_interrupter(context.interrupter)
    if context.renderer:
        builder.renderer(context.renderer)
    if config.early_stopping:
        builder.early_stopping(config.early_stopping)
    if config.averaging:
        builder.average_weights(config.averaging)
    if config.deterministic:
        builder.deterministic()
    if config.portable:
        builder.portable()
    if config.sync_batch_norm:
        builder.sync_batch_norm()
    if config.compile:
        builder.compile("default" if config.compile is True else config.compile)
    return builder.gradient_checkpointing() if config.gradient_checkpointing else builder


def _add_loggers(config: FitConfig, builder: "learner.LearnerBuilder", context: FitContext) -> None:
    directory, key = builder.directory / "telemetry", builder.directory.name
    run = RunDescription(key, context.params, {"run.key": key, **context.tags})
    for logger in config.loggers:
        if loggers.is_tracker(logger):
            builder.with_progress_logger(loggers.build_tracker(logger, directory, run))
        else:
            added = loggers.build_loggers(logger, directory)
            builder.add_metric_loggers(added[Split.TRAIN], added[Split.VALID])


def _build_metrics(config: FitConfig) -> "list[Any]":
    """Return the metrics, and the telemetry that is not one of them."""
    built = [metrics.build_metric(metric) for metric in config.metrics]
    names = {metric.name for metric in built}
    telemetry = [metrics.build_telemetry(metric) for metric in config.telemetry]
    return built + [metric for metric in telemetry if metric.name not in names]


def build_hook(use: Use) -> Any:
    """Return the hook that *use* names. Raises `PluginError` and `BuilderError` for one that cannot work."""
    hook = plugins.build("hook", use.kind, plugins.find("hook", use.kind, HOOKS), arguments_of(use))
    learner.check_hook(hook)
    return hook


def configure_evaluator(config: FitConfig, builder: "learner.EvaluatorBuilder") -> "learner.EvaluatorBuilder":
    """Set the first device and the settings of the computation on *builder*, and return it."""
    version = choose_version(config.burn, config.recorder.suffix)
    return builder.device(list_devices(config)[0]).compute(compute_settings(config)).burn(version).summary()


def compute_settings(config: FitConfig) -> "devices.ComputeSettings":
    """Return the settings with which a trained model is evaluated."""
    return devices.ComputeSettings(
        precision=config.precision,
        deterministic=config.deterministic,
        num_threads=config.num_threads,
        portable=config.portable,
    )


def write_test_results(
    resolved: Mapping[str, Any], recorder: "records.Recorder", paths: SaveModelPaths
) -> None:
    """Evaluate the model at ``paths.model`` on the test split, and write its logs and metrics.

    *resolved* is the content of config.json, and *recorder* reads the model. Only the metrics file is written
    if there is no test split, and nothing if dvc.yaml has no path for it.
    """
    is_tested = paths.data is not None and "test" in data.read_info(paths.data / data.DATASET_FILE).counts
    if paths.test is None:
        if is_tested:
            log.warning(
                "the model is not evaluated on the test split: dvc.yaml has no vars.paths.test. Add "
                "'test: artifacts/test/split' there, '${paths.learner}' and '${paths.data}' to the deps of "
                "save-model, '${paths.test}' to its outs, and '${paths.test}/metrics.json' to metrics"
            )
        return
    remove(paths.test)
    values = None
    if is_tested and paths.data is not None and paths.learner is not None:
        fit = FitConfig.model_validate(resolved["fit"])
        spec = learner.LearnerSpec.read(paths.learner)
        model, _, _ = spec.build(resolved["build_learner"]["seed"])
        records.load_file(model, paths.model, recorder)
        values = _evaluate(fit, model, paths.data, paths.test, list_factories(resolved))
    write_text(paths.test / METRICS_FILE, to_json({"test": values}) + "\n")


def list_factories(resolved: Mapping[str, Any]) -> list[str]:
    """Return the import path of the datasets that *resolved*, the content of config.json, names, if any."""
    factory = resolved["load_data"]["source"].get("factory")
    return [factory["kind"]] if factory else []


def build_output_metrics(config: FitConfig) -> list[Any]:
    """Return the metrics of *config* that measure the outputs of a model, also of one that does not train."""
    built = [
        (metric, metrics.MetricOptions.of(metric)) for metric in map(metrics.build_metric, config.metrics)
    ]
    return [metric for metric, options in built if not (options.telemetry or options.train_only)]


def _evaluate(
    config: FitConfig, model: Any, directory: Path, logs: Path, allowed: Collection[str]
) -> dict[str, float]:
    """Return the metrics of *config* over the test split in *directory*, sorted by name, and write *logs*.

    They are those whose values DVC tracks: the metrics of the model's outputs.
    """
    info = data.read_info(directory / data.DATASET_FILE)
    loader = build_test_loader(config, data.read_split(directory, "test", info, allowed=allowed), info)
    builder = learner.EvaluatorBuilder(logs.parent).metrics(*build_output_metrics(config))
    evaluator = configure_evaluator(config, builder.metric_logger(loggers.TestMetricLogger(logs))).build(
        model
    )
    return dict(sorted(evaluator.eval("test", loader).items()))


def epochs_to_keep(config: FitConfig, history: History, last_epoch: int, initial: Path) -> set[int]:
    """Return the epochs whose checkpoints are kept after *last_epoch*.

    *initial* is the directory of the initial learner, which has the checkpoints of a run that is resumed.
    """
    inherited = [epoch for epoch in list_epochs(initial / CHECKPOINT_FOLDER) if epoch > 0]
    return runs.epochs_to_keep(config.keep.rule(), history, inherited, last_epoch)


def follow_main(config: FitConfig, paths: FitPaths, context: FitContext) -> None:
    """Train together with rank 0, which calls `fit` and owns the run store, until it has a result.

    Raises `RunInterruptedError` if the ranks were asked to stop, after rank 0 has saved the run, because
    torchrun kills the ranks of a host 30 seconds after one of them has exited.
    """
    config = config.model_copy(update={"loggers": ()})  # rank 0 logs
    while context.group.will_train():
        builder = configure_builder(config, learner.LearnerBuilder(paths.runs), context)
        run = builder.checkpoint("auto").build(*learner.LearnerSpec.read(paths.learner).build(config.seed))
        train, valid = build_loaders(config, data.read(paths.data, ["valid"], allowed=context.allowed))
        run.fit(train, valid)
        if config.strategy == "fsdp":  # rank 0 cannot run the model without the other parts of it
            learner.confusion_cells(run, valid, devices.derive_seed(config.seed, "confusion"))
        if run.interrupted:
            context.group.will_train()
            raise RunInterruptedError("stopped together with rank 0, which has saved the run")
