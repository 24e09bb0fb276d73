"""The builder of a learner, with the method names of Burn."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import nn

from stages.contracts.burn import Version
from stages.contracts.errors import BuilderError
from stages.contracts.events import Interrupter, MetricLogger, Renderer
from stages.contracts.fields import FastPath, Precision, StepKind, Strategy
from stages.contracts.history import Split
from stages.contracts.plugins import check_object
from stages.devices.compilation import CompileOptions
from stages.learner.assembly import AnyOptimizer, LearningRate
from stages.learner.batches import Loader
from stages.learner.checks import check_unique_name
from stages.learner.hooks import check_hook
from stages.learner.learner import Learner
from stages.learner.options import LearnerOptions
from stages.learner.registered_metric import RegisteredMetric
from stages.metrics import Metric, MetricOptions, PassMetric, StepMetric
from stages.optim import (
    Accumulation,
    Averaging,
    Clipping,
    NonFinite,
)
from stages.records import BurnpackRecorder, HalfPrecision, Recorder
from stages.runs import CheckpointStorage, Retention
from stages.runs.retention import EarlyStopping

log = logging.getLogger(__name__)

AnyMetric = Metric | StepMetric | PassMetric
OBJECTS = {
    "recorder": ("DefaultRecorder()", "record"),
    "renderer": ("PlainRenderer()", "step"),
    "retention": ("KeepLast(2)", "keep"),
    "early_stopping": ("MetricEarlyStopping(…)", "reason"),
    "averaging": ("Ema(…)", "kind"),
    "clipping": ("ClipByNorm(…)", "kind"),
    "non_finite": ("NonFinite(…)", "kind"),
    "interrupter": ("Interrupter()", "stop"),
}
"""The options that are objects: an example, and the attribute that each of them has."""


class LearnerBuilder:
    """Builder of a `Learner`, which writes everything below *directory*:

    ```python
    learner = (
        LearnerBuilder("artifacts")
        .metrics(AccuracyMetric(), LossMetric())
        .with_file_checkpointer(NamedMpkGzFileRecorder())
        .num_epochs(10)
        .build(model, Adam(), 1e-3)
    )
    model = learner.fit(train, valid)
    ```
    """

    def __init__(self, directory: Path | str) -> None:
        self._options = LearnerOptions(Path(directory).absolute())  # the run may change the current folder

    @property
    def directory(self) -> Path:
        """The artifact directory."""
        return self._options.directory

    def metric_train(self, metric: AnyMetric) -> Self:
        """Show and log *metric* on the train split, without a curve or a row in the summary."""
        return self._register(Split.TRAIN, metric, numeric=False)

    def metric_valid(self, metric: AnyMetric) -> Self:
        """Show and log *metric* on the valid split, without a curve or a row in the summary."""
        return self._register(Split.VALID, metric, numeric=False)

    def metric_train_numeric(self, metric: AnyMetric) -> Self:
        """Log *metric* on the train split, with a curve and a row in the summary."""
        return self._register(Split.TRAIN, metric, numeric=True)

    def metric_valid_numeric(self, metric: AnyMetric) -> Self:
        """Log *metric* on the valid split, with a curve and a row in the summary."""
        return self._register(Split.VALID, metric, numeric=True)

    def metrics(self, *metrics: AnyMetric) -> Self:
        """Log *metrics* as numbers on both splits, or in training only if they have ``train_only``."""
        return self._register_all(metrics, numeric=True)

    def metrics_text(self, *metrics: AnyMetric) -> Self:
        """Show and log *metrics* on both splits, or in training only if they have ``train_only``."""
        return self._register_all(metrics, numeric=False)

    def metric_loggers(self, train: MetricLogger, valid: MetricLogger) -> Self:
        """Log to *train* and *valid* instead of ``<directory>/train`` and ``<directory>/valid``."""
        _check_loggers(train, valid)
        return self._set(loggers={Split.TRAIN: [train], Split.VALID: [valid]})

    def add_metric_loggers(self, train: MetricLogger, valid: MetricLogger) -> Self:
        """Log to *train* and *valid* in addition to the other loggers, also metrics of the machine."""
        _check_loggers(train, valid)
        before = self._options.additional_loggers
        added = {Split.TRAIN: train, Split.VALID: valid}
        return self._set(additional_loggers={split: (*before[split], added[split]) for split in Split})

    def renderer(self, renderer: Renderer) -> Self:
        """Show the run with *renderer*. Default: a live view on a terminal, otherwise a line per epoch."""
        return self._set(renderer=renderer)

    def with_progress_logger(self, logger: Renderer) -> Self:
        """Report the progress to *logger* in addition to the renderer. Default: none."""
        check_object(logger, "progress logger", *OBJECTS["renderer"])
        return self._set(progress_loggers=(*self._options.progress_loggers, logger))

    def with_application_logger(self, installer: Callable[[], AbstractContextManager[object]] | None) -> Self:
        """Enter the context that *installer* returns for the duration of the run; None changes no logging.

        Default: log records of level INFO and above are appended to ``<directory>/experiment.log``.
        """
        return self._set(application_log=installer or nullcontext)

    def num_epochs(self, num_epochs: int) -> Self:
        """Train for *num_epochs* in total, including those before a resume. Default: 1."""
        _check_count("num_epochs", num_epochs, least=1)
        return self._set(num_epochs=num_epochs)

    def devices(self, devices: Sequence[str | torch.device]) -> Self:
        """Train on *devices*: ``auto`` (the default, the fastest available), ``cpu``, ``cuda:0`` or ``mps``.

        Several devices need a process each, started by torchrun. Each computes its share of every batch, and
        all make the same update.
        """
        if isinstance(devices, str) or not devices:
            raise BuilderError(f"devices({devices!r}): pass a list of devices, for example ['cuda:0']")
        return self._set(devices=devices)

    def precision(self, precision: Precision) -> Self:
        """Compute in *precision*: ``f32`` (IEEE, the default), ``tf32``, ``bf16`` or ``fp16``.

        With ``bf16`` and ``fp16`` a step runs under autocast; fp16 also scales the loss. Weights, gradients,
        optimizer state and records are float32 in each.
        """
        _check_choice("precision", precision, Precision)
        return self._set_compute(precision=precision)

    def deterministic(self) -> Self:
        """Compute the same bits each time on an accelerator too; operations that cannot raise an error.

        Default: no. A CPU always computes the same bits with the same number of threads.
        """
        return self._set_compute(deterministic=True)

    def num_threads(self, num_threads: int | None) -> Self:
        """Compute with *num_threads* threads on a CPU while the run trains. Default: torch's choice."""
        if num_threads is not None:
            _check_count("num_threads", num_threads, least=1)
        return self._set_compute(num_threads=num_threads)

    def strategy(self, strategy: Strategy) -> Self:
        """Set how several ranks train one model; one rank ignores it.

        Args:
            strategy: ``ddp``: every rank has all parameters, and the ranks add their gradients. ``fsdp``:
                every rank has a part of each parameter and of the state of the optimizer, and gathers the
                parameters of a layer while it runs (PyTorch's FSDP2), for models that do not fit one
                device. Default: ``auto``, which is ``ddp``.
        """
        return self._set(strategy=strategy)

    def portable(self) -> Self:
        """Compute the same bits on every x86-64 CPU with AVX2, in about 1.5 times the time. Default: no.

        It needs `num_threads`, precision ``f32``, no `compile`, and an optimizer that computes no
        `torch.sqrt`, such as Adam. Call `stages.devices.prepare_portable` before torch first computes. On
        another architecture or an accelerator a warning is logged.
        """
        return self._set_compute(portable=True)

    def compile(self, mode: str = "default", *, backend: str | Callable[..., Any] = "inductor") -> Self:
        """Compile the model with `torch.compile` in *mode*. Default: no.

        Batches of another shape than the first of a split, such as a smaller last one, run uncompiled. Names
        and records are those of the model itself. Raises `BuilderError` for a mode that is unknown or has
        CUDA graphs of its own.
        """
        return self._set(compile=CompileOptions(mode, backend))

    def fast_path(self, choice: FastPath) -> Self:
        """Call the fused kernel of the optimizer directly (``auto``, the default) or its ``step`` (``off``).

        Both give the same bits.
        """
        return self._set(fast_path=choice)

    def step(self, kind: StepKind) -> Self:
        """Launch a training step as one CUDA graph if possible (``auto``, the default), or never (``eager``).

        ``captured`` logs a warning, and ``auto`` a line, if the steps of a run on CUDA cannot be captured.
        Both give the same bits.
        """
        _check_choice("step", kind, StepKind)
        return self._set(step=kind)

    def burn(self, version: Version | None) -> Self:
        """Follow a *version* of Burn, ``0.21`` or ``0.22``, in what differs between them.

        It decides about the lines of the logs, when a schedule steps, the rest of an accumulation window, the
        end of a cosine, and the mean over absent classes. Default: 0.22 with the recorder of burnpack, and
        otherwise the defaults of this project, which the page about Burn lists.
        """
        return self._set(burn=version)

    def grads_accumulation(
        self, batches: int, *, reduction: str = "mean", leftover: str | None = None
    ) -> Self:
        """Accumulate the gradients of *batches* batches for one step of the optimizer. Default: 1.

        With the *reduction* ``mean`` every sample has the same weight; Burn's ``sum`` adds the means of the
        batches. *leftover* decides about an incomplete window at the end of an epoch: it is applied
        (``flush``, the default), dropped as in Burn 0.21 (``drop``, the default in a run that follows it), or
        continued in the next epoch (``carry``).
        """
        _check_count("grads_accumulation", batches, least=1)
        options = {"batches": batches, "reduction": reduction, "leftover": leftover}
        present = {name: option for name, option in options.items() if option is not None}
        return self._set(accumulation=Accumulation.model_validate(present))

    def non_finite(self, rule: NonFinite) -> Self:
        """Handle NaN or infinity in loss or gradients by *rule*. Default: stop before the weights change."""
        return self._set(non_finite=rule)

    def grad_clipping(self, clipping: Clipping) -> Self:
        """Clip gradients: each tensor by value or norm, as in Burn, or all by their global norm.

        Default: the clipping of the optimizer's config.
        """
        return self._set(clipping=clipping)

    def average_weights(self, averaging: Averaging) -> Self:
        """Average the weights by *averaging*, `Ema` or `Swa`. Default: no.

        The average is validated and saved in checkpoints, and the training continues with its own weights:
        those of ``Learner.model``. Use `Learner.apply_average` to evaluate the average.
        """
        return self._set(averaging=averaging)

    def hooks(self, *hooks: Any) -> Self:
        """Call *hooks*, after those of earlier calls, at fixed points of the run. Default: none.

        A hook has methods of `stages.learner.Hook`. Raises `BuilderError` if they do not fit.
        """
        for hook in hooks:
            check_hook(hook)
        return self._set(hooks=(*self._options.hooks, *hooks))

    def gradient_checkpointing(self) -> Self:
        """Recompute activations in the backward pass instead of keeping them: less memory, more time."""
        return self._set(gradient_checkpointing=True)

    def sync_batch_norm(self) -> Self:
        """Normalize batches by the statistics of all ranks, with `torch.nn.SyncBatchNorm`. Default: no.

        Otherwise each of several ranks uses the statistics of its share. It needs accelerators, and has no
        effect on one device.
        """
        return self._set(sync_batch_norm=True)

    def with_file_checkpointer(self, recorder: Recorder) -> Self:
        """Write a checkpoint of every epoch to ``<directory>/checkpoint``. Default: no checkpoints."""
        self._set(recorder=recorder)
        if recorder.precision is HalfPrecision:
            log.warning(
                "checkpoints in half precision: a resumed run will not equal an uninterrupted one. Use a "
                "recorder of full precision to resume exactly"
            )
        return self

    def with_default_checkpointers(self) -> Self:
        """Write a checkpoint of every epoch as burnpack, as Burn 0.22 does. Default: no checkpoints."""
        return self.with_file_checkpointer(BurnpackRecorder())

    def with_custom_checkpointers(self, storage: CheckpointStorage, recorder: Recorder | None = None) -> Self:
        """Write a checkpoint of every epoch to *storage* too, and read those that the directory lacks.

        *recorder* is that of `with_file_checkpointer`, by default the one of burnpack. Logs, and checkpoints
        within an epoch, are in the directory alone. Default: no storage.
        """
        check_object(storage, "storage", "MyStorage(…)", "write")
        return self._set(storage=storage).with_file_checkpointer(recorder or BurnpackRecorder())

    def checkpoint_every(self, *, steps: int | None = None, seconds: float | None = None) -> Self:
        """Write checkpoints within an epoch too, and keep the newest of them. Default: none.

        An interrupted run with a checkpointer always writes one. Training continues while one is written: a
        killed run repeats at most two intervals, the second only if it was killed during a write.
        """
        interval = replace(self._options.interval, every_steps=steps, every_seconds=seconds)
        return self._set(interval=interval)

    def max_unsaved(self, seconds: float) -> Self:
        """Fail if no checkpoint can be written for more than *seconds*. Default: never."""
        return self._set(interval=replace(self._options.interval, max_unsaved_seconds=seconds))

    def identity(self, identity: str) -> Self:
        """Store *identity* in checkpoints, and refuse to resume from those with another. Default: none."""
        return self._set(identity=identity)

    def with_checkpointing_strategy(self, strategy: Retention) -> Self:
        """Keep checkpoints by *strategy*. Default: the last two and the best by validation loss."""
        return self._set(retention=strategy)

    def early_stopping(self, strategy: EarlyStopping) -> Self:
        """Stop the run early by *strategy*. Default: never."""
        return self._set(early_stopping=strategy)

    def interrupter(self) -> Interrupter:
        """Return a handle that stops the run after the current step, from any thread."""
        interrupter = self._options.interrupter or Interrupter()
        self._set(interrupter=interrupter)
        return interrupter

    def with_interrupter(self, interrupter: Interrupter) -> Self:
        """Use an existing handle to stop the run."""
        return self._set(interrupter=interrupter)

    def checkpoint(self, epoch: int | Literal["auto"]) -> Self:
        """Resume after *epoch*, from its checkpoint in ``<directory>/checkpoint``. Default: start a new run.

        Checkpoints and logs of later epochs then belong to another run, and are removed when the next epoch
        is finished. ``"auto"`` resumes from the newest intact checkpoint, also within an epoch, and prints
        its place; without one it starts a new run. A warning names the options of the optimizer and of a
        scheduler of PyTorch that differ from those of the checkpoint, which apply. The files and logs of a
        checkpoint of Burn remain.
        """
        return self._set(checkpoint=epoch)

    def sanity_check(self, batches: int) -> Self:
        """Validate on the first *batches* before a new run trains, and discard the values. Default: 0.

        A mistake in the validation is then reported at once. The run has the same numbers.
        """
        _check_count("sanity_check", batches, least=0)
        return self._set(sanity_check=batches)

    def limit_batches(self, train: int | None = None, valid: int | None = None) -> Self:
        """Use at most the first *train* and *valid* batches of each pass. Default: all.

        This is also the number of batches in an epoch of a loader that does not end.
        """
        values = {Split.TRAIN: train, Split.VALID: valid}
        limits = {split: limit for split, limit in values.items() if limit is not None}
        for limit in limits.values():
            _check_count("limit_batches", limit, least=1)
        return self._set(limit_batches=limits)

    def validate_every(self, epochs: int) -> Self:
        """Validate after each epoch whose number is a multiple of *epochs*. Default: 1.

        The other epochs have no value of the valid split, and cannot be the best. Rules for early stopping
        and plateaus that read such a value apply after the epochs that have one.
        """
        _check_count("validate_every", epochs, least=1)
        return self._set(validate_every=epochs)

    def seed(self, seed: int) -> Self:
        """Derive the random state of each epoch from *seed*.

        Default: the seed in the checkpoint, or else ``torch.initial_seed()`` at the start of the run.
        """
        return self._set(seed=seed)

    def label(self, text: str) -> Self:
        """Name the run *text* in its log, in the lines of the renderer and for progress loggers."""
        return self._set(label=text)

    def summary(self) -> Self:
        """Print the table of lowest and highest values after the run. Default: no."""
        return self._set(summary=True)

    def build(
        self,
        model: nn.Module,
        optimizer: AnyOptimizer,
        lr: LearningRate = None,
    ) -> Learner:
        """Return the learner, with its model on the device and restored from the checkpoint, if any.

        *model* may be the result of `torch.compile`: its ``forward`` then runs compiled, and the learner's
        model is the wrapped one. *optimizer* is an optimizer of torch over the model's parameters, or a
        config, also with groups of parameters. *lr* is a rate, a scheduler (of `stages.optim` or of torch),
        the config of one of torch, or None for the rates of the optimizer's groups, which may change during
        training and are restored from a checkpoint.

        Raises `BuilderError` for options that cannot work together, and `CheckpointError` if the checkpoint
        is missing, corrupt or of another model.
        """
        return self._assemble(Learner(model, optimizer, lr))

    def _assemble(self, learner: Learner) -> Learner:
        options, accumulation = self._options, self._options.accumulation
        if options.burn == "0.21" and "leftover" not in accumulation.model_fields_set:
            options = replace(options, accumulation=accumulation.model_copy(update={"leftover": "drop"}))
        return learner.assemble(options)

    def _set(self, **options: Any) -> Self:
        for option in OBJECTS.keys() & options.keys():
            if options[option] is not None:
                check_object(options[option], option.replace("_", " "), *OBJECTS[option])
        self._options = replace(self._options, **options)
        return self

    def _set_compute(self, **settings: Any) -> Self:
        return self._set(compute=replace(self._options.compute, **settings))

    def _register(self, split: Split, metric: AnyMetric, *, numeric: bool) -> Self:
        metrics, registered = self._options.metrics, RegisteredMetric(metric, numeric)
        check_unique_name(registered, metrics[split], f"the {split} split")
        return self._set(metrics={**metrics, split: (*metrics[split], registered)})

    def _register_all(self, metrics: Sequence[AnyMetric], *, numeric: bool) -> Self:
        for metric in metrics:
            self._register(Split.TRAIN, metric, numeric=numeric)
            if not MetricOptions.of(metric).train_only:
                self._register(Split.VALID, metric, numeric=numeric)
        return self


class SupervisedTraining(LearnerBuilder):
    """A builder with the loaders of the run, as in Burn since 0.20:

        training = SupervisedTraining("artifacts", train, valid).metrics(LossMetric()).num_epochs(10)
        result = training.launch(Learner(model, Adam(), 1e-3))
        save_file(result.model, "model", CompactRecorder())

    The options are those of `LearnerBuilder`.
    """

    def __init__(self, directory: Path | str, train: Loader, valid: Loader | None) -> None:
        super().__init__(directory)
        self._loaders = train, valid

    def launch(self, learner: Learner) -> Learner:
        """Train *learner* and return it, with the trained model.

        Raises the errors of `LearnerBuilder.build` and `Learner.fit`.
        """
        self._assemble(learner).fit(*self._loaders)
        return learner


def _check_count(option: str, value: int, *, least: int) -> None:
    """Raise `BuilderError` unless *value* of *option* is an integer from *least*."""
    if not isinstance(value, Integral) or value < least:
        raise BuilderError(f"{option}({value!r}): pass an integer from {least}")


def _check_choice(option: str, value: str, choices: Any) -> None:
    """Raise `BuilderError` unless *value* of *option* is one of *choices*, a `Literal`."""
    if value not in get_args(choices):
        raise BuilderError(f"{option}({value!r}): use one of {', '.join(get_args(choices))}")


def _check_loggers(*loggers: MetricLogger) -> None:
    for logger in loggers:
        check_object(logger, "metric logger", "InMemoryMetricLogger()", "log")
